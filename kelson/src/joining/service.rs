//! The side of the cluster: a server with an etcd member answers joining servers.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kelson_apiserver::JoinHandler;
use kelson_auth::{UserInfo, user};
use kelson_bundle::join::ServerToken;
use kelson_members::{AdmitError, InitialCluster, Member};
use kelson_meta::{Reason, Status};
use kelson_tasks::FILES;
use serde_json::Value;
use zeroize::Zeroizing;

use super::keys;
use super::request::{JoinRequest, JoiningMember, SealedKeys};
use crate::token;

/// Adds a member to an etcd cluster.
#[async_trait]
pub trait Admits: Send + Sync {
    /// As of [`Member::cluster_minor`].
    fn cluster_minor(&self) -> Option<u32>;
    /// As of [`Member::admit`].
    async fn admit(&self, name: &str, peer_urls: &[String]) -> Result<InitialCluster, AdmitError>;
}

#[async_trait]
impl Admits for Member {
    fn cluster_minor(&self) -> Option<u32> {
        Self::cluster_minor(self)
    }

    async fn admit(&self, name: &str, peer_urls: &[String]) -> Result<InitialCluster, AdmitError> {
        Self::admit(self, name, peer_urls).await
    }
}

/// Answers joining servers.
pub struct JoinService {
    data_dir: PathBuf,
    member: Option<Arc<dyn Admits>>,
}

impl JoinService {
    /// Creates the service of the server with this data directory and member.
    pub fn new(data_dir: PathBuf, member: Option<Arc<dyn Admits>>) -> Self {
        Self { data_dir, member }
    }

    /// Seals the keys for the bootstrap token with which the user has authenticated.
    async fn keys(&self, user: &UserInfo, request: &JoinRequest, etcd_minor: Option<u32>) -> Result<Value, Status> {
        let (pin, is_vote) = (&request.pin, request.vote);
        let Some(id) = user.name.strip_prefix(user::BOOTSTRAP_USER_PREFIX) else {
            let why = "a server joins with a token of `kelson token create --server`, not with other credentials";
            return Err(Status::failure(403, Reason::Forbidden, why));
        };
        if !is_vote && !user.groups.iter().any(|group| group == token::SERVERS) {
            let why = "the token is not for servers; `kelson vote` takes one of `kelson token create --vote`";
            return Err(Status::failure(403, Reason::Forbidden, why));
        }
        let secret = self.secret(id).await.map_err(|e| Status::unavailable(format!("read the token: {e:#}")))?;
        let token = ServerToken::new(pin, id, &secret);
        let token = token.ok_or_else(|| Status::bad_request("pin must be sha256: and 64 hexadecimal digits"))?;
        let dir = self.data_dir.clone();
        let sealed =
            FILES.run(move || keys::sealed(&dir, &token, is_vote, Timestamp::now())).await.map_err(Status::internal)?;
        let sealed = sealed.map_err(|e| conflict(format!("{e:#}")))?;
        tracing::info!(token = id, vote = is_vote, "sent the keys of the cluster to a joining server");
        to_value(&SealedKeys { sealed: STANDARD.encode(sealed), etcd_minor })
    }

    /// Reads the secret half of a bootstrap token, as the administrator of this server.
    async fn secret(&self, id: &str) -> anyhow::Result<Zeroizing<String>> {
        let dir = self.data_dir.clone();
        let client = FILES.run(move || token::admin(&dir)).await??;
        token::secret(&client, id).await
    }
}

#[async_trait]
impl JoinHandler for JoinService {
    async fn answer(&self, user: &UserInfo, body: &[u8]) -> Result<Value, Status> {
        let request = kelson_meta::from_json::<JoinRequest>(body);
        let request = request.map_err(|e| Status::bad_request(format!("not the request of a joining server: {e}")))?;
        request.check_version().map_err(conflict)?;
        let Some(member) = &self.member else {
            return Err(conflict(
                "this server has no etcd member, which servers share; restart it with --cluster-init, or use --etcd-servers on all servers",
            ));
        };
        match &request.member {
            None => self.keys(user, &request, member.cluster_minor()).await,
            Some(JoiningMember { name, peer_urls }) => {
                let initial = member.admit(name, peer_urls).await.map_err(|e| status_of(&e))?;
                to_value(&initial)
            }
        }
    }
}

/// Returns the status for the joining server: 503 if it should ask again.
fn status_of(error: &AdmitError) -> Status {
    match error {
        error if error.is_temporary() => Status::unavailable(error.to_string()),
        AdmitError::Invalid(why) => Status::bad_request(why),
        error => conflict(error.to_string()),
    }
}

fn conflict(why: impl Into<String>) -> Status {
    Status::failure(409, Reason::Conflict, why)
}

fn to_value(answer: &impl serde::Serialize) -> Result<Value, Status> {
    serde_json::to_value(answer).map_err(Status::internal)
}
