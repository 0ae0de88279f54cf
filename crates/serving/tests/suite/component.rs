//! A component's port over TLS, with an API server in memory that says who callers are and what they may.
// Helpers of a test fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kelson_apiserver::{ApiServer, Config as ApiConfig, Running};
use kelson_auth::{UserInfo, user};
use kelson_client::kubeconfig::{Config, Credentials};
use kelson_client::remote::Remote;
use kelson_client::{Client, Transport as _};
use kelson_meta::SystemClock;
use kelson_metrics::Registry;
use kelson_pki::{ClusterPki, PkiOptions, SwappableCertificate};
use kelson_serving::{Component, Delegated, OpenPaths, Port, start};
use kelson_store::{Store, StoreOptions};
use kelson_tasks::Tasks;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct World {
    _dir: tempfile::TempDir,
    _api: Running,
    pki: ClusterPki,
    client: Client,
    tasks: Tasks,
    healthy: Arc<AtomicBool>,
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tokens = dir.path().join("tokens");
        std::fs::write(&tokens, "reader,alice,1,\"system:monitoring\"\nplain,bob,2\n").unwrap();
        let pki = ClusterPki::open(&PkiOptions::new(dir.path().join("pki")), Timestamp::now()).unwrap();
        let mut config = ApiConfig::new(Store::in_memory(StoreOptions::default()));
        config.token_auth_file = Some(tokens);
        let api = ApiServer::start(config).await.unwrap();
        api.ready().await;
        let scheduler = UserInfo::new(user::KUBE_SCHEDULER, [user::AUTHENTICATED]);
        let client = Client::new(api.in_process(scheduler), "scheduler");
        let (tasks, healthy) = (Tasks::root("test"), Arc::new(AtomicBool::new(true)));
        Self { _dir: dir, _api: api, pki, client, tasks, healthy }
    }

    fn component(&self) -> Component {
        let registry = Registry::of_component();
        registry.counter("test_answers_total", "For the test.").inc();
        let ca = self.pki.ca.cert_pem();
        let sans = ClusterPki::server_sans("cluster.local", HERE, &[]);
        let issued = self.pki.issue_server(&sans, Timestamp::now()).unwrap();
        let healthy = Arc::clone(&self.healthy);
        Component {
            name: "test",
            registry,
            healthy: Arc::new(move || healthy.load(Ordering::SeqCst).then_some(()).ok_or("out of order".to_owned())),
            open: OpenPaths::default(),
            access: Arc::new(Delegated::new(self.client.clone(), Arc::new(SystemClock), ca).unwrap()),
            certificate: SwappableCertificate::new(&issued).unwrap(),
            client_ca_pem: ca.to_owned(),
        }
    }

    async fn get(&self, at: SocketAddr, path: &str, credentials: Credentials) -> (u16, String) {
        let config = Config {
            server: format!("https://{at}"),
            ca_pem: self.pki.ca.cert_pem().as_bytes().to_vec(),
            credentials,
            ..Config::default()
        };
        let request = http::Request::get(path).body(Bytes::new()).unwrap();
        let response = Remote::new(config).unwrap().send(request).await.unwrap();
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8_lossy(&body).into_owned())
    }
}

fn token(text: &str) -> Credentials {
    Credentials::Token(text.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_open_and_metrics_are_for_those_who_may() {
    let world = World::new().await;
    let at = start(&world.tasks, HERE, Port::Usual(0), world.component()).await.unwrap().unwrap();
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(world.get(at, path, Credentials::None).await, (200, "ok".to_owned()));
    }
    world.healthy.store(false, Ordering::SeqCst);
    let (code, body) = world.get(at, "/healthz", Credentials::None).await;
    assert!(code == 500 && body.contains("out of order"), "{code} {body}");

    let issued = world.pki.issue_client("carol", &["system:monitoring"], Duration::from_secs(3600), Timestamp::now());
    let issued = issued.unwrap();
    let carol = Credentials::Certificate {
        cert_pem: issued.cert_pem.clone().into_bytes(),
        key_pem: issued.key.to_pem().into_bytes(),
    };
    for (who, credentials, want) in [
        ("nobody", Credentials::None, 403),
        ("a bad token", token("stolen"), 401),
        ("a user without the right", token("plain"), 403),
        ("a monitoring user's token", token("reader"), 200),
        ("the same again, from what was kept", token("reader"), 200),
        ("a monitoring user's certificate", carol.clone(), 200),
    ] {
        let (code, body) = world.get(at, "/metrics", credentials).await;
        assert_eq!(code, want, "{who}: {body}");
        assert_eq!(body.contains("\ntest_answers_total 1\n"), want == 200, "{who}: {body}");
    }
    assert_eq!(world.get(at, "/elsewhere", token("plain")).await.0, 403);
    assert!(world.tasks.shutdown(Duration::from_secs(5)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_matters_only_where_it_was_asked_for() {
    let world = World::new().await;
    let first = start(&world.tasks, HERE, Port::Usual(0), world.component()).await.unwrap().unwrap();
    let taken = first.port();
    assert_eq!(start(&world.tasks, HERE, Port::Usual(taken), world.component()).await.unwrap(), None);
    let refused = start(&world.tasks, HERE, Port::Asked(taken), world.component()).await.unwrap_err().to_string();
    assert!(refused.contains(&taken.to_string()), "{refused}");
    assert_eq!(start(&world.tasks, HERE, Port::Asked(0), world.component()).await.unwrap(), None, "0 is none");
}
