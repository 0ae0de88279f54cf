//! Certificates that expire after a minute are renewed sixty times, and the CAs are replaced three times, over real
//! sockets. Three clients see no error: one with only its first credentials, one with all new ones, and one with a
//! watch.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kelson_apiserver::{ApiServer, Config as ServerConfig, Running, ServingConfig, Trusted};
use kelson_client::kubeconfig::{Config, Credentials};
use kelson_client::remote::Remote;
use kelson_client::{Client, ListParams, WatchEvent};
use kelson_pki::{ClusterPki, Issued, LeafSpec, PkiOptions, Purpose, San, SwappableCertificate, rotation};
use kelson_store::{Store, StoreOptions};
use serde_json::json;

const ROUNDS: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);

struct Cluster {
    dir: tempfile::TempDir,
    api: Running,
    serving: Arc<SwappableCertificate>,
    url: String,
}

fn opened(dir: &std::path::Path) -> ClusterPki {
    ClusterPki::open(&PkiOptions::new(dir.join("pki")), Timestamp::now()).expect("a PKI")
}

/// Issues a certificate that is valid for a minute.
fn issued(pki: &ClusterPki, name: &str, group: &str, purpose: Purpose) -> Issued {
    let organizations = [group.to_owned()];
    let sans = [San::Ip("127.0.0.1".parse().expect("an address"))];
    let sans = if purpose == Purpose::Server { &sans[..] } else { &[] };
    let spec = LeafSpec { common_name: name, organizations: &organizations, sans, purpose, lifetime: MINUTE };
    pki.ca.issue(&spec, Timestamp::now()).expect("a certificate")
}

impl Cluster {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let pki = opened(dir.path());
        let serving = SwappableCertificate::new(&issued(&pki, "kube-apiserver", "", Purpose::Server)).expect("usable");
        let certificate = Arc::clone(&serving);
        let mut config = ServerConfig::new(Store::in_memory(StoreOptions::default()));
        config.client_ca_pem = pki.ca_bundle();
        config.request_header_ca_pem = pki.front_proxy_bundle();
        config.serving = Some(ServingConfig { bind: SocketAddr::from(([127, 0, 0, 1], 0)), certificate });
        let api = ApiServer::start(config).await.expect("starts");
        let url = format!("https://{}", api.local_addr().expect("an address"));
        Self { dir, api, serving, url }
    }

    /// Returns a client with a certificate of these CAs, which it also trusts.
    fn client(&self, pki: &ClusterPki) -> Client {
        let own = issued(pki, "jane", "system:masters", Purpose::Client);
        let credentials = Credentials::Certificate {
            cert_pem: own.cert_pem.clone().into_bytes(),
            key_pem: own.key.to_pem().into_bytes(),
        };
        let ca_pem = pki.ca_bundle().into_bytes();
        let config = Config { server: self.url.clone(), ca_pem, credentials, ..Config::default() };
        Client::new(Arc::new(Remote::new(config).expect("a client")), "test")
    }

    /// Rotates the server's certificates and CAs for a round.
    async fn turn(&self, round: usize) -> ClusterPki {
        let pki = self.dir.path().join("pki");
        match round % 20 {
            10 => rotation::begin(&pki, Timestamp::now()).expect("begun"),
            19 => assert!(rotation::finish(&pki).expect("finished")),
            _ => {}
        }
        let pki = opened(self.dir.path());
        let [client_ca_pem, request_header_ca_pem, kubelet_ca_pem] = pki.bundles();
        let peer_ca_pem = client_ca_pem.clone();
        let trusted = Trusted { client_ca_pem, request_header_ca_pem, kubelet_ca_pem, peer_ca_pem };
        self.api.trust(&trusted).await.expect("trusted");
        self.serving.swap(&issued(&pki, "kube-apiserver", "", Purpose::Server)).expect("swapped");
        pki
    }
}

async fn asks(client: &Client, round: usize, who: &str) {
    let answer = client.call(Method::GET, "/api/v1/namespaces/default", "", bytes::Bytes::new()).await;
    answer.unwrap_or_else(|e| panic!("round {round}, {who}: {e}"));
}

#[tokio::test]
async fn an_hour_of_minutes_certificates_fails_no_request() {
    let cluster = Cluster::start().await;
    let first = opened(cluster.dir.path());
    let watcher = cluster.client(&first);
    let mut watch = watcher.watch::<ConfigMap>("default", &ListParams::default(), true).await.expect("a watch");
    let mut kept = cluster.client(&first);
    for round in 0..ROUNDS {
        let pki = cluster.turn(round).await;
        // Requests on a connection from before the last change, and on a new one.
        asks(&kept, round, "a client of before").await;
        kept = cluster.client(&pki);
        asks(&kept, round, "a client of now").await;
        let name = format!("m{round}");
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}});
        kept.create::<ConfigMap>("default", &map).await.expect("made");
        // An authorized watch continues, even if its client's certificate has expired.
        loop {
            let event = tokio::time::timeout(MINUTE, watch.next()).await.expect("in time").expect("no fault");
            match event.expect("the watch goes on") {
                WatchEvent::Added(map) if map.metadata.name.as_deref() == Some(&name) => break,
                _ => {}
            }
        }
    }
    // A certificate of a CA that was replaced is not accepted.
    let stranger = cluster.client(&first);
    assert!(stranger.call(Method::GET, "/api", "", bytes::Bytes::new()).await.is_err());
}
