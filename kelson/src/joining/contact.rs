//! The connection of a joining server to a server of the cluster. The token is sent only to a server whose CA matches its pin.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Method;
use kelson_bundle::join::ServerToken;
use kelson_client::kubeconfig::{Config, Credentials};
use kelson_client::{Client, ClientError};
use kelson_members::InitialCluster;
use kelson_tasks::FILES;
use serde::de::DeserializeOwned;

use super::keys::pins_of;
use super::request::{JoinRequest, JoiningMember, PATH, SealedKeys};
use crate::cluster::INFO_KEY;
use crate::reach::{self, Fault, ask, cluster_info, persist, unreachable};

/// The name of the component in requests.
const COMPONENT: &str = "server";

/// A server of the cluster, and the token.
pub struct Contact {
    server: String,
    pin: String,
    client: Client,
}

impl Contact {
    /// Connects to a server: the CA is in `ca_file`, or the cluster publishes it, and must match the pin of the token.
    ///
    /// # Errors
    /// The CA does not match, or cannot be read.
    pub async fn find(server: &str, token: &ServerToken, ca_file: Option<&Path>) -> anyhow::Result<Self> {
        let ca = match ca_file {
            Some(file) => {
                let path = file.to_owned();
                let read = FILES.run(move || std::fs::read_to_string(path)).await?;
                let ca = read.with_context(|| format!("--server-ca {}", file.display()))?;
                check_pin(server, &ca, &token.pin())?;
                ca
            }
            None => {
                let client = reach::unverified(COMPONENT, server)?;
                persist(server, || published_ca(server, &client, token)).await?
            }
        };
        Self::new(server, token, &ca)
    }

    /// Connects to a server with a known CA.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn new(server: &str, token: &ServerToken, ca_pem: &str) -> anyhow::Result<Self> {
        let credentials = Credentials::Token(token.bootstrap().to_string());
        let client = reach::client(COMPONENT, server, ca_pem, credentials)?;
        Ok(Self { server: server.to_owned(), pin: token.pin(), client })
    }

    /// Requests the keys of the cluster, sealed with the token. Returns the minor version of its etcd as well, if that is known.
    ///
    /// # Errors
    /// The server rejects the request.
    pub async fn keys(&self) -> anyhow::Result<(Vec<u8>, Option<u32>)> {
        self.sealed(&JoinRequest::new(self.pin.clone(), None)).await
    }

    /// Requests the keys that a vote needs, as [`Contact::keys`] does.
    ///
    /// # Errors
    /// The server rejects the request.
    pub async fn vote_keys(&self) -> anyhow::Result<(Vec<u8>, Option<u32>)> {
        self.sealed(&JoinRequest::of_vote(self.pin.clone())).await
    }

    async fn sealed(&self, request: &JoinRequest) -> anyhow::Result<(Vec<u8>, Option<u32>)> {
        let answer: SealedKeys = self.post(request).await?;
        let sealed = STANDARD.decode(answer.sealed).with_context(|| format!("the keys from {}", self.server))?;
        Ok((sealed, answer.etcd_minor))
    }

    /// Requests that the member of this server, which has a listener at these URLs, is added to the cluster. Waits for its turn.
    ///
    /// # Errors
    /// The server rejects the request.
    pub async fn admission(&self, name: &str, peer_urls: Vec<String>) -> anyhow::Result<InitialCluster> {
        let member = JoiningMember { name: name.to_owned(), peer_urls };
        self.post(&JoinRequest::new(self.pin.clone(), Some(member))).await
    }

    async fn post<T: DeserializeOwned>(&self, request: &JoinRequest) -> anyhow::Result<T> {
        let body = Bytes::from(serde_json::to_vec(request)?);
        let answer = persist(&self.server, async || {
            let call = self.client.call(Method::POST, PATH, "application/json", body.clone());
            ask(call).await.map_err(|e| fault(&self.server, e))
        });
        let answer = answer.await?;
        kelson_meta::from_json(&answer).with_context(|| format!("the answer of {}", self.server))
    }
}

/// Returns the CA that the cluster publishes, if it matches the token.
async fn published_ca(server: &str, client: &Client, token: &ServerToken) -> Result<String, Fault> {
    let info = cluster_info(server, client).await?;
    let Some(text) = info.data.as_ref().and_then(|data| data.get(INFO_KEY)) else {
        return Err(Fault::Soon(anyhow!("{server} has not published its CA yet")));
    };
    let ca = Config::parse_cluster(text.as_bytes()).context("the cluster's cluster-info").map_err(Fault::Never)?.ca_pem;
    let ca = String::from_utf8(ca).context("the cluster's CA").map_err(Fault::Never)?;
    check_pin(server, &ca, &token.pin()).map_err(Fault::Never)?;
    Ok(ca)
}

fn check_pin(server: &str, ca_pem: &str, pin: &str) -> anyhow::Result<()> {
    let present = pins_of(ca_pem)?;
    if present.iter().any(|present| present == pin) {
        return Ok(());
    }
    bail!(
        "--token is for a cluster with the CA {pin}, but the CA of {server} is {}: the token is of another cluster, or the connection is intercepted",
        present.join(", ")
    )
}

/// Classifies a request that was not answered with success.
fn fault(server: &str, e: ClientError) -> Fault {
    let create = "create a token with `kelson token create --server` on a server of the cluster";
    match e.status().map(|status| (status.code, status.message.clone())) {
        Some((401, _)) => Fault::Never(anyhow!("{server} rejected the token: it is wrong or has expired; {create}")),
        Some((403, why)) => Fault::Never(anyhow!("{server} does not let this token join a server ({why}); {create}")),
        Some((404, _)) => Fault::Never(anyhow!(
            "{server} has no {PATH}: it runs an older release of Kelson, to which servers cannot join, or another API server"
        )),
        Some((400 | 409, why)) => Fault::Never(anyhow!("{server} rejected the join: {why}")),
        _ => unreachable(server, e),
    }
}

#[cfg(test)]
mod tests {
    use kelson_meta::{Reason, Status};
    use kelson_pki::Authority;

    use super::*;

    #[test]
    fn what_the_server_rejects_is_permanent_and_says_what_to_do() {
        for (code, part) in [
            (401, Some("has expired; create a token with `kelson token create --server`")),
            (403, Some("does not let this token join a server (why)")),
            (404, Some("older release")),
            (409, Some("rejected the join: why")),
            (400, Some("rejected the join: why")),
            (422, Some("why")),
            (503, None),
            (500, None),
            (429, None),
        ] {
            let error = ClientError::Status(Box::new(Status::failure(code, Reason::Unknown, "why")));
            match (fault("https://h:1", error), part) {
                (Fault::Never(e), Some(part)) => assert!(e.to_string().contains(part), "{code}: {e}"),
                (Fault::Wait(e), None) => assert!(e.to_string().contains("why"), "{code}: {e}"),
                (Fault::Never(e) | Fault::Wait(e) | Fault::Soon(e), _) => panic!("{code}: {e}"),
            }
        }
    }

    #[test]
    fn another_ca_is_rejected() {
        let now = jiff::Timestamp::now();
        let (own, other) = (Authority::create("ca", now).unwrap(), Authority::create("ca", now).unwrap());
        let pin = |ca: &Authority| pins_of(ca.cert_pem()).unwrap().remove(0);
        assert!(check_pin("https://h:1", own.cert_pem(), &pin(&own)).is_ok());
        let both = format!("{}{}", other.cert_pem(), own.cert_pem());
        assert!(check_pin("https://h:1", &both, &pin(&own)).is_ok(), "while CAs are rotated");
        let rejected = check_pin("https://h:1", other.cert_pem(), &pin(&own)).unwrap_err().to_string();
        assert!(rejected.contains(&pin(&own)) && rejected.contains(&pin(&other)), "{rejected}");
    }
}
