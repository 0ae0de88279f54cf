//! What clients can hold of a server, over real sockets; the clients of these tests are slow or silent on purpose.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::common::Api;
use kelson_apiserver::ServingConfig;
use kelson_pki::{AnyServerCertificate, ClusterPki, PkiOptions, SwappableCertificate};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const WRITES_MAX: usize = 8;
/// A test that takes longer fails.
const LIMIT: Duration = Duration::from_secs(20);
const REVIEW: &str = r#"{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"nonResourceAttributes":{"path":"/x","verb":"get"}}}"#;

struct Server {
    api: Api,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Server {
    async fn start(fairness: bool) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let now = jiff::Timestamp::now();
        let pki = ClusterPki::open(&PkiOptions::new(dir.path().join("pki")), now).expect("a PKI");
        let tokens = dir.path().join("tokens");
        std::fs::write(&tokens, "joe-token,joe,1\n").expect("writes");
        let sans = ClusterPki::server_sans("cluster.local", "10.43.0.1".parse().expect("an address"), &[]);
        let certificate = SwappableCertificate::new(&pki.issue_server(&sans, now).expect("issues")).expect("a key");
        let api = Api::with(|config| {
            config.serving = Some(ServingConfig { bind: SocketAddr::from(([127, 0, 0, 1], 0)), certificate });
            config.token_auth_file = Some(tokens);
            config.priority_and_fairness = fairness;
            config.reads_in_flight_max = WRITES_MAX;
            config.writes_in_flight_max = WRITES_MAX;
        })
        .await;
        let address = api.running.local_addr().expect("listens");
        Self { api, address, _dir: dir }
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let tls = AnyServerCertificate::client_config().expect("a client");
        let tcp = TcpStream::connect(self.address).await.expect("connects");
        let name = rustls_pki_types::ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::new(tls)).connect(name, tcp).await.expect("a handshake")
    }

    /// Joe sends a review, at first only `sent` bytes of it.
    async fn review(&self, sent: usize) -> TlsStream<TcpStream> {
        let mut connection = self.connect().await;
        let head = format!(
            "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews HTTP/1.1\r\nhost: localhost\r\n\
             authorization: Bearer joe-token\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            REVIEW.len()
        );
        connection.write_all(head.as_bytes()).await.expect("writes");
        connection.write_all(&REVIEW.as_bytes()[..sent]).await.expect("writes");
        connection.flush().await.expect("writes");
        connection
    }
}

async fn answer(connection: &mut TlsStream<TcpStream>) -> String {
    let mut text = vec![0; 4096];
    let read = tokio::time::timeout(LIMIT, connection.read(&mut text)).await.expect("answered or closed");
    // If the client does not speak HTTP, the server closes without an answer.
    let length = read.unwrap_or(0);
    String::from_utf8_lossy(&text[..length]).lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_slow_body_holds_no_seat() {
    for fairness in [true, false] {
        slow_bodies(fairness).await;
    }
}

async fn slow_bodies(fairness: bool) {
    let server = Server::start(fairness).await;
    let mut slow = Vec::new();
    for _ in 0..WRITES_MAX * 3 {
        slow.push(server.review(REVIEW.len() - 1).await);
    }
    // Their bytes are counted, but no seat is taken.
    let all = WRITES_MAX * 3 * (REVIEW.len() - 1);
    let counted = async {
        while server.api.running.server().bodies.held() < all {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, counted).await.expect("the bodies arrive");
    assert_eq!(server.api.running.server().flow.in_flight().1, 0);
    assert_eq!(answer(&mut server.review(REVIEW.len()).await).await, "HTTP/1.1 201 Created");
    // They are served when they are complete.
    let mut first = slow.swap_remove(0);
    first.write_all(&REVIEW.as_bytes()[REVIEW.len() - 1..]).await.expect("writes");
    assert_eq!(answer(&mut first).await, "HTTP/1.1 201 Created");
}

#[tokio::test]
async fn a_client_rejected_before_its_body_was_read_gets_the_error() {
    let server = Server::start(true).await;
    for (token, path, expected) in [
        ("wrong", "/api/v1/namespaces/default/configmaps", "HTTP/1.1 401 Unauthorized"),
        ("joe-token", "/api/v1/namespaces/default/configmaps", "HTTP/1.1 403 Forbidden"),
    ] {
        let mut connection = server.connect().await;
        let body = vec![b' '; 2 << 20];
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        connection.write_all(head.as_bytes()).await.expect("writes");
        connection.write_all(&body).await.expect("the whole body is accepted");
        connection.flush().await.expect("writes");
        assert_eq!(answer(&mut connection).await, expected);
    }
}

#[tokio::test]
async fn the_http_version_is_the_one_negotiated_with_tls() {
    let server = Server::start(true).await;
    // Without negotiation it is HTTP/1.1, whatever the first bytes look like.
    let mut connection = server.connect().await;
    connection.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("writes");
    let first = answer(&mut connection).await;
    assert!(first.is_empty() || first.starts_with("HTTP/1.1 4") || first.starts_with("HTTP/1.1 505"), "{first}");
}

/// The number of heavy requests so far.
fn heavy(api: &Api) -> u64 {
    api.running.server().heavy.begun()
}

#[tokio::test]
async fn large_bodies_are_processed_off_the_runtime() {
    let api = Api::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = |name: &str, bytes: usize| serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "x".repeat(bytes)}});
    let before = heavy(&api);
    api.create(maps, map("small", 1000)).await;
    assert_eq!(heavy(&api), before);
    api.create(maps, map("large", 500_000)).await;
    assert_eq!(heavy(&api), before + 1);
    let patch = serde_json::json!({"data": {"k": "y".repeat(100_000)}});
    let (code, answer) = api.call("PATCH", &format!("{maps}/large"), patch).await;
    assert_eq!((code, answer["data"]["k"].as_str().map(str::len)), (200, Some(100_000)));
    assert_eq!(heavy(&api), before + 2);
    // A list in pieces yields to other tasks.
    assert_eq!(api.raw("GET", maps, &[], "").await.status(), 200);
    assert_eq!(heavy(&api), before + 2);
}

#[tokio::test]
async fn a_patch_that_grows_beyond_bounds_is_too_large() {
    let api = Api::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let map =
        serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": "v"}});
    api.create(maps, map).await;
    let bomb = format!("[{}0]", "{\"a\":0},".repeat(300_000));
    let headers = [("content-type", "application/json-patch+json")];
    let answer = api.raw("PATCH", &format!("{maps}/m"), &headers, bomb).await;
    assert_eq!(answer.status(), 413);
    let nested = (0..400).map(|_| {
        r#"{"op":"add","path":"/b","value":{}},{"op":"move","from":"/data","path":"/b/a"},{"op":"move","from":"/b","path":"/data"}"#
    });
    let deep = format!("[{}]", nested.collect::<Vec<_>>().join(","));
    let answer = api.raw("PATCH", &format!("{maps}/m"), &headers, deep).await;
    assert_eq!(answer.status(), 400);
}

#[tokio::test]
async fn expensive_requests_are_processed_off_the_runtime() {
    let api = Api::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let map =
        |name: &str, bytes: usize| serde_json::json!({"metadata": {"name": name}, "data": {"k": "x".repeat(bytes)}});
    api.create(maps, map("large", 500_000)).await;
    api.create(maps, map("small", 10)).await;
    let started = async |method: &str, uri: &str, headers: &[(&str, &str)], body: &str| {
        let before = heavy(&api);
        let answer = api.raw(method, uri, headers, body.to_owned()).await;
        assert!(answer.status().is_success(), "{method} {uri}: {}", answer.status());
        // A list is built while it is read.
        http_body_util::BodyExt::collect(answer.into_body()).await.expect("a body");
        heavy(&api) - before
    };
    let (large, small) = (format!("{maps}/large"), format!("{maps}/small"));
    let merge = [("content-type", "application/merge-patch+json")];
    let patch = r#"{"metadata":{"labels":{"a":"b"}}}"#;
    let claim = serde_json::json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "d", "selectors": [{"cel": {"expression": "device.driver.matches('a')"}}]}}]}}});
    let yaml = [("accept", "application/yaml")];
    for (what, expected, got) in [
        ("a small patch of a large object", true, started("PATCH", &large, &merge, patch).await),
        ("of a small one", false, started("PATCH", &small, &merge, patch).await),
        ("a read of stored bytes", false, started("GET", &large, &[], "").await),
        ("a read in another form", true, started("GET", &large, &yaml, "").await),
        ("of a small one", false, started("GET", &small, &yaml, "").await),
        ("a list of a large object in another form", true, started("GET", maps, &yaml, "").await),
        ("a list of stored bytes", false, started("GET", maps, &[], "").await),
        (
            "a small object with expressions",
            true,
            started("POST", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", &[], &claim.to_string())
                .await,
        ),
        ("the document of everything", true, started("GET", "/openapi/v2", &[], "").await),
        ("health", false, started("GET", "/livez", &[], "").await),
    ] {
        assert_eq!(got > 0, expected, "{what}: {got}");
    }
}

#[tokio::test]
async fn the_patterns_of_one_object_share_one_budget() {
    let api = Api::start().await;
    let selectors: Vec<_> = (0..32)
        .map(|i| {
            let expression = format!("device.driver.matches('p{i}([a-z]{{1000}}){{1,9}}')");
            serde_json::json!({"cel": {"expression": expression}})
        })
        .collect();
    let claim = serde_json::json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "d", "selectors": selectors}}]}}});
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims?dryRun=All";
    let (code, refused) = api.call("POST", claims, claim).await;
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(code == 422 && message.contains("invalid matches argument"), "{code} {message}");
}
