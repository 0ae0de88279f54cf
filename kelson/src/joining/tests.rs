//! Both sides of a join with a real API server in between, without etcd.
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use kelson_apiserver::{ApiServer, Config, Running, ServingConfig};
use kelson_auth::{UserInfo, user};
use kelson_bundle::join::{JoinOutcome, ServerToken, install, install_for_vote};
use kelson_client::{Client, PatchKind, WriteOptions};
use kelson_members::{AdmitError, InitialCluster, InitialMember};
use kelson_pki::ClusterPki;
use kelson_ranges::{Given, Ranges};
use kelson_store::{Store, StoreOptions};

use super::contact::Contact;
use super::service::{Admits, JoinService};
use crate::certificates::{Certificates, CurrentPki};
use crate::cluster::{self, Bundles, CLUSTER_DOMAIN, ClusterSettings};
use crate::token::{Purpose, Token, admit_own};
use crate::{authorities, rbac};

const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const PATIENCE: Duration = Duration::from_secs(20);

/// A member that is busy at the first request, and rejects the name `taken`.
#[derive(Default)]
struct Voter(AtomicUsize);

#[async_trait]
impl Admits for Voter {
    fn cluster_minor(&self) -> Option<u32> {
        Some(5)
    }

    async fn admit(&self, name: &str, peer_urls: &[String]) -> Result<InitialCluster, AdmitError> {
        if name == "taken" {
            return Err(AdmitError::NameTaken { name: name.to_owned(), url: peer_urls[0].clone() });
        }
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            return Err(AdmitError::Busy { learner: "c".to_owned() });
        }
        Ok(InitialCluster {
            cluster_id: "1".to_owned(),
            member_id: "2".to_owned(),
            members: vec![InitialMember { name: name.to_owned(), peer_urls: peer_urls.to_vec() }],
            etcd_version: "3.5.30".to_owned(),
            cluster_minor: 5,
        })
    }
}

/// A server to join.
struct Server {
    dir: tempfile::TempDir,
    pki: CurrentPki,
    api: Running,
    url: String,
    masters: Client,
}

impl Server {
    async fn start(member: Option<Arc<dyn Admits>>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let pki = CurrentPki::new(ClusterPki::open(&authorities::options(dir.path()), now).unwrap());
        let ranges = kelson_ranges::settle(dir.path(), Given::default()).await.unwrap();
        std::fs::create_dir_all(dir.path().join("etcd/pki")).unwrap();
        for name in ["ca.crt", "ca.key"] {
            std::fs::write(dir.path().join("etcd/pki").join(name), name).unwrap();
        }
        let names = ClusterPki::server_sans(CLUSTER_DOMAIN, LOOPBACK, &[]);
        let certificates = Certificates::issue(&pki, names, now).unwrap();
        let mut config = Config::new(Store::in_memory(StoreOptions::default()));
        let certificate = Arc::clone(certificates.serving.certificate());
        config.serving = Some(ServingConfig { bind: SocketAddr::new(LOOPBACK, 0), certificate });
        config.client_ca_pem = pki.get().ca_bundle();
        config.join = Some(Arc::new(JoinService::new(dir.path().to_owned(), member)));
        let api = ApiServer::start(config).await.unwrap();
        api.ready().await;
        let url = format!("https://{}", api.local_addr().unwrap());
        pki.get().ensure_admin_kubeconfig(&dir.path().join("admin.kubeconfig"), &url, now).unwrap();
        let masters = Client::new(api.in_process(UserInfo::new(user::API_SERVER, [user::MASTERS])), "server");
        rbac::ensure(&masters).await.unwrap();
        let server = Self { dir, pki, api, url, masters };
        cluster::publish(&server.masters, &server.url, &Bundles::of(&server.pki.get()), &settings(ranges))
            .await
            .unwrap();
        server
    }

    fn token(&self, token: &Token) -> ServerToken {
        let pin = super::pins_of(&self.pki.get().ca_bundle()).unwrap().remove(0);
        token.of_servers(&pin).unwrap()
    }

    async fn contact(&self, token: &ServerToken) -> Contact {
        Contact::find(&self.url, token, None).await.unwrap()
    }

    /// Returns the error of a request for the keys with a token.
    async fn rejection(&self, token: &Token) -> String {
        self.contact(&self.token(token)).await.keys().await.unwrap_err().to_string()
    }
}

fn settings(ranges: Ranges) -> ClusterSettings {
    ClusterSettings { ranges, dns: LOOPBACK, domain: CLUSTER_DOMAIN.to_owned(), network_policy: true }
}

/// Requests the keys until the role of the token is effective.
async fn keys(contact: &Contact) -> Vec<u8> {
    let sealed = async {
        loop {
            match contact.keys().await {
                Ok((sealed, etcd_minor)) => {
                    assert_eq!(etcd_minor, Some(5));
                    return sealed;
                }
                Err(e) => assert!(e.to_string().contains("does not let this token"), "{e:#}"),
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, sealed).await.expect("the role is effective")
}

fn read(dir: &Path, name: &str) -> Vec<u8> {
    std::fs::read(dir.join(name)).unwrap()
}

#[tokio::test]
async fn a_token_gives_the_keys_of_the_cluster_and_a_member() {
    let server = Server::start(Some(Arc::new(Voter::default()))).await;
    let bootstrap = Token::random();
    admit_own(&server.masters, &bootstrap, Purpose::Server).await.unwrap();
    let token = server.token(&bootstrap);
    let contact = server.contact(&token).await;
    let sealed = keys(&contact).await;
    let joined = tempfile::tempdir().unwrap();
    let outcome = install(&sealed, &token, joined.path(), Timestamp::now()).unwrap();
    assert_eq!(outcome, JoinOutcome::Written);
    for name in ["pki/ca.crt", "pki/ca.key", "pki/sa.key", "etcd/pki/ca.key", "network.json"] {
        assert_eq!(read(joined.path(), name), read(server.dir.path(), name), "{name}");
    }
    let urls = vec!["https://127.0.0.1:1".to_owned()];
    let initial = contact.admission("b", urls.clone()).await.unwrap();
    assert_eq!(initial.initial_cluster(), "b=https://127.0.0.1:1", "after another server has joined");
    let taken = contact.admission("taken", urls).await.unwrap_err().to_string();
    assert!(taken.contains("rejected the join: a running member is named taken"), "{taken}");
    server.api.shutdown().await;
}

#[tokio::test]
async fn tokens_that_are_not_valid_for_servers_are_rejected() {
    let server = Server::start(Some(Arc::new(Voter::default()))).await;
    let (valid, node, expired) = (Token::random(), Token::random(), Token::random());
    for (token, purpose) in [(&valid, Purpose::Server), (&node, Purpose::Node), (&expired, Purpose::Server)] {
        admit_own(&server.masters, token, purpose).await.unwrap();
    }
    let secret = format!("bootstrap-token-{}", expired.id);
    let patch = serde_json::json!({"stringData": {"expiration": "2020-01-01T00:00:00Z"}});
    let options = WriteOptions::default();
    let patched = server.masters.patch::<k8s_openapi::api::core::v1::Secret>(
        "kube-system",
        &secret,
        "",
        PatchKind::Merge,
        &patch,
        &options,
    );
    patched.await.unwrap();
    drop(keys(&server.contact(&server.token(&valid)).await).await);
    let wrong = Token { secret: Token::random().secret, ..valid.clone() };
    for (token, part) in [
        (&wrong, "it is wrong or has expired"),
        (&expired, "it is wrong or has expired"),
        (&node, "does not let this token join a server"),
    ] {
        let error = server.rejection(token).await;
        assert!(error.contains(part) && error.contains("kelson token create --server"), "{error}");
        assert!(!error.contains(token.secret.as_str()), "the secret is not repeated: {error}");
    }
    let foreign = valid.of_servers(&format!("sha256:{}", "0a".repeat(32))).unwrap();
    let error = Contact::find(&server.url, &foreign, None).await.err().unwrap().to_string();
    assert!(error.contains("the token is of another cluster, or the connection is intercepted"), "{error}");
    server.api.shutdown().await;
}

#[tokio::test]
async fn the_token_of_a_vote_gives_the_etcd_ca_only() {
    let server = Server::start(Some(Arc::new(Voter::default()))).await;
    let (vote, other) = (Token::random(), Token::random());
    admit_own(&server.masters, &vote, Purpose::Vote).await.unwrap();
    admit_own(&server.masters, &other, Purpose::Server).await.unwrap();
    // Both roles are effective when a server joins.
    drop(keys(&server.contact(&server.token(&other)).await).await);
    let token = server.token(&vote);
    let contact = server.contact(&token).await;
    let sealed = tokio::time::timeout(PATIENCE, async {
        loop {
            match contact.vote_keys().await {
                Ok((sealed, _)) => return sealed,
                Err(e) => assert!(e.to_string().contains("does not let this token"), "{e:#}"),
            }
            tokio::task::yield_now().await;
        }
    });
    let sealed = sealed.await.expect("the role is effective");
    let joined = tempfile::tempdir().unwrap();
    assert_eq!(install_for_vote(&sealed, &token, joined.path()).unwrap(), JoinOutcome::Written);
    assert_eq!(read(joined.path(), "etcd/pki/ca.key"), read(server.dir.path(), "etcd/pki/ca.key"));
    assert!(!joined.path().join("pki").exists(), "no key of the API");
    let rejected = server.rejection(&vote).await;
    assert!(rejected.contains("the token is not for servers"), "{rejected}");
    // The token of a server gives it too.
    assert!(server.contact(&server.token(&other)).await.vote_keys().await.is_ok());
    server.api.shutdown().await;
}

#[tokio::test]
async fn a_server_without_a_member_cannot_be_joined() {
    let server = Server::start(None).await;
    let token = Token::random();
    admit_own(&server.masters, &token, Purpose::Server).await.unwrap();
    let contact = server.contact(&server.token(&token)).await;
    let rejected = async {
        loop {
            let error = contact.keys().await.unwrap_err().to_string();
            if !error.contains("does not let this token") {
                return error;
            }
            tokio::task::yield_now().await;
        }
    };
    let error = tokio::time::timeout(PATIENCE, rejected).await.expect("the role is effective");
    assert!(error.contains("has no etcd member") && error.contains("--cluster-init"), "{error}");
    server.api.shutdown().await;
}
