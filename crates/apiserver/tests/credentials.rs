//! Credentials over real sockets: forged, expired and foreign ones are rejected with the right status, and no secret of them is logged.
//! Uses of tokens in Secrets are recorded on the Secrets.
//!
//! A separate process: it captures the log of the whole process and searches it for secrets.
#[path = "suite/common/mod.rs"]
mod common;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use common::Api;
use jiff::Timestamp;
use kelson_apiserver::{ServiceAccountConfig, ServingConfig};
use kelson_auth::Objects;
use kelson_auth::token::{IssuerOptions, TokenIssuer, TokenTerms};
use kelson_pki::{AnyServerCertificate, Authority, ClusterPki, Issued, Key, LeafSpec, PkiOptions, Purpose};
use kelson_pki::{SwappableCertificate, provider};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

const ISSUER: &str = "https://kubernetes.default.svc";
const LIMIT: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);
const STATIC_TOKEN: &str = "joes-static-token";
const BOOTSTRAP_SECRET: &str = "0123456789abcdef";

/// Captures the log of this process at all levels.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = Log::default();
        let into = log.clone();
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::TRACE);
        subscriber.with_ansi(false).with_writer(move || into.clone()).init();
        log
    })
}

struct Server {
    api: Api,
    pki: ClusterPki,
    key: Key,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Server {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let now = Timestamp::now();
        let pki = ClusterPki::open(&PkiOptions::new(dir.path().join("pki")), now).expect("a PKI");
        let tokens = dir.path().join("tokens");
        std::fs::write(&tokens, format!("{STATIC_TOKEN},joe,1\n")).expect("writes");
        let sans = ClusterPki::server_sans("cluster.local", "10.43.0.1".parse().expect("an address"), &[]);
        let certificate = SwappableCertificate::new(&pki.issue_server(&sans, now).expect("issues")).expect("a key");
        let key = Key::generate().expect("a key");
        let api = Api::with(|config| {
            config.serving = Some(ServingConfig { bind: SocketAddr::from(([127, 0, 0, 1], 0)), certificate });
            config.token_auth_file = Some(tokens);
            config.client_ca_pem = pki.ca.cert_pem().to_owned();
            config.request_header_ca_pem = pki.front_proxy_ca.cert_pem().to_owned();
            config.service_accounts = Some(ServiceAccountConfig {
                issuer: ISSUER.into(),
                issuers_before: Vec::new(),
                verifiers: vec![key.public().clone()],
                key: key.clone(),
                audiences: Vec::new(),
                terms: Default::default(),
            });
        })
        .await;
        let address = api.running.local_addr().expect("listens");
        Self { api, pki, key, address, _dir: dir }
    }

    /// The status code of a GET of all secrets with these credentials.
    async fn get(&self, certificate: Option<&Issued>, headers: &[(&str, &str)]) -> u16 {
        let config = rustls::ClientConfig::builder_with_provider(provider());
        let config = config.with_safe_default_protocol_versions().expect("versions").dangerous();
        let config = config.with_custom_certificate_verifier(AnyServerCertificate::verifier());
        let tls = match certificate {
            Some(issued) => config.with_client_cert_resolver(SwappableCertificate::new(issued).expect("a key")),
            None => config.with_no_client_auth(),
        };
        let tcp = tokio::net::TcpStream::connect(self.address).await.expect("connects");
        let name = rustls_pki_types::ServerName::try_from("localhost").expect("a name");
        let mut stream = TlsConnector::from(Arc::new(tls)).connect(name, tcp).await.expect("a handshake");
        let mut head = "GET /api/v1/secrets HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n".to_owned();
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).await.expect("writes");
        let mut answer = vec![0; 4096];
        let read = tokio::time::timeout(LIMIT, stream.read(&mut answer)).await.expect("answered");
        let text = String::from_utf8_lossy(&answer[..read.expect("an answer")]).into_owned();
        let code = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|code| code.parse().ok());
        code.unwrap_or_else(|| panic!("no status: {text}"))
    }

    async fn bearer(&self, token: &str) -> u16 {
        self.get(None, &[("authorization", &format!("Bearer {token}"))]).await
    }

    /// Creates a service account and returns its UID.
    async fn account(&self, name: &str) -> String {
        let account = json!({"metadata": {"name": name}});
        let made = self.api.create("/api/v1/namespaces/default/serviceaccounts", account).await;
        made["metadata"]["uid"].as_str().expect("a uid").to_owned()
    }
}

/// The only service account, by its UID.
struct Account(String);

impl Objects for Account {
    fn get(&self, _: &str, resource: &str, _: &str, _: &str) -> Option<bytes::Bytes> {
        (resource == "serviceaccounts").then(|| json!({"metadata": {"uid": self.0}}).to_string().into())
    }
    fn list(&self, _: &str, _: &str, _: &str) -> Vec<bytes::Bytes> {
        Vec::new()
    }
}

fn minted(key: &Key, issuer: &str, uid: &str, audiences: &[&str], at: Timestamp) -> String {
    let options = IssuerOptions { issuer: issuer.into(), audiences: vec![ISSUER.into()], ..IssuerOptions::default() };
    let spec = json!({"spec": {"audiences": audiences, "expirationSeconds": 600}});
    let made = TokenIssuer::new(key.clone(), options).answer(&Account(uid.into()), "default", "bot", &spec, at);
    made.expect("minted").response["status"]["token"].as_str().expect("a token").to_owned()
}

fn with_header(token: &str, header: &Value) -> String {
    let (_, rest) = token.split_once('.').expect("a token");
    format!("{}.{rest}", URL_SAFE_NO_PAD.encode(header.to_string()))
}

fn with_claim(token: &str, claim: &str, value: Value) -> String {
    let parts: Vec<&str> = token.split('.').collect();
    let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[1]).expect("base64")).expect("JSON");
    claims[claim] = value;
    format!("{}.{}.{}", parts[0], URL_SAFE_NO_PAD.encode(claims.to_string()), parts[2])
}

fn bootstrap(id: &str, more: Value) -> Value {
    let mut data = json!({"token-id": id, "token-secret": BOOTSTRAP_SECRET, "usage-bootstrap-authentication": "true"});
    for (key, value) in more.as_object().expect("an object") {
        data[key] = value.clone();
    }
    json!({"metadata": {"name": format!("bootstrap-token-{id}")}, "type": "bootstrap.kubernetes.io/token",
        "stringData": data})
}

#[tokio::test]
async fn forged_expired_and_foreign_tokens_are_rejected_and_not_logged() {
    let log = log();
    let server = Server::start().await;
    let uid = server.account("bot").await;
    let now = Timestamp::now();
    let good = minted(&server.key, ISSUER, &uid, &[], now);
    let other = Key::generate().expect("a key");
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let past = json!({"expiration": "2020-01-01T00:00:00Z"});
    for (id, more) in
        [("aaaaaa", json!({})), ("bbbbbb", past), ("cccccc", json!({"usage-bootstrap-authentication": "false"}))]
    {
        server.api.create(secrets, bootstrap(id, more)).await;
    }
    // Valid credentials authenticate a user who may not read secrets (403). The rows below fail to authenticate.
    for token in [&good, STATIC_TOKEN, &format!("aaaaaa.{BOOTSTRAP_SECRET}")] {
        assert_eq!(server.bearer(token).await, 403, "{}", &token[..6]);
    }
    let parts: Vec<&str> = good.split('.').collect();
    let (unsigned, garbled) =
        (format!("{}.{}.", parts[0], parts[1]), format!("{}.{}.{}", parts[0], parts[1], "!".repeat(80)));
    let rows: Vec<(&str, String)> = vec![
        ("bad base64", "a!.b!.c!".into()),
        ("a signature that is no base64", garbled),
        ("no signature", unsigned.clone()),
        ("alg none", with_header(&unsigned, &json!({"alg": "none"}))),
        ("alg none, signed", with_header(&good, &json!({"alg": "none"}))),
        ("HMAC", with_header(&good, &json!({"alg": "HS256"}))),
        ("another algorithm", with_header(&good, &json!({"alg": "RS256"}))),
        ("no JSON", format!("{}.{}.{}", parts[0], URL_SAFE_NO_PAD.encode("{"), parts[2])),
        ("another subject", with_claim(&good, "sub", json!("system:serviceaccount:kube-system:default"))),
        ("a longer life", with_claim(&good, "exp", json!(now.as_second() + 1_000_000))),
        ("another audience", minted(&server.key, ISSUER, &uid, &["vault"], now)),
        ("another issuer", minted(&server.key, "https://issuer.example", &uid, &[], now)),
        ("another key", minted(&other, ISSUER, &uid, &[], now)),
        ("expired", minted(&server.key, ISSUER, &uid, &[], now - 2 * HOUR)),
        ("not yet valid", minted(&server.key, ISSUER, &uid, &[], now + 2 * HOUR)),
        ("an account of before", minted(&server.key, ISSUER, "another-uid", &[], now)),
        ("a static token, nearly", format!("{STATIC_TOKEN}x")),
        ("a bootstrap token's other half", "aaaaaa.ffffffffffffffff".into()),
        ("an expired bootstrap token", format!("bbbbbb.{BOOTSTRAP_SECRET}")),
        ("a bootstrap token for signing", format!("cccccc.{BOOTSTRAP_SECRET}")),
        ("a long one", "x".repeat(30_000)),
    ];
    for (what, token) in &rows {
        assert_eq!(server.bearer(token).await, 401, "{what}");
        let review = json!({"spec": {"token": token}});
        let (code, answer) = server.api.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review).await;
        assert_eq!((code, &answer["status"]["authenticated"]), (201, &Value::Null), "{what}: {answer}");
        let said = answer["status"]["error"].as_str().unwrap_or_default();
        assert!(!said.contains(token.as_str()), "{what}: {said}");
    }
    let text = String::from_utf8_lossy(&log.0.lock()).into_owned();
    assert!(text.contains("secrets"), "rejections are logged");
    for (what, token) in rows.iter().chain(&[("the good one", good.clone()), ("a static token", STATIC_TOKEN.into())]) {
        assert!(!text.contains(token.as_str()), "{what}");
        let last = token.rsplit('.').next().unwrap_or_default();
        assert!(last.len() < 16 || !text.contains(last), "{what}: its secret half");
    }
    assert!(!text.contains(BOOTSTRAP_SECRET));
}

fn certificate(ca: &Authority, name: &str, groups: &[&str], at: Timestamp) -> Issued {
    let organizations: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
    let leaf = LeafSpec {
        common_name: name,
        organizations: &organizations,
        sans: &[],
        purpose: Purpose::Client,
        lifetime: HOUR,
    };
    ca.issue(&leaf, at).expect("issues")
}

#[tokio::test]
async fn foreign_certificates_and_untrusted_headers_do_not_authenticate() {
    log();
    let server = Server::start().await;
    let (now, ca, proxies) = (Timestamp::now(), &server.pki.ca, &server.pki.front_proxy_ca);
    let stranger = Authority::create("kubernetes", now).expect("a CA");
    let masters = ["system:masters"];
    let root = certificate(ca, "root", &masters, now);
    let jane = certificate(ca, "jane", &[], now);
    let proxy = certificate(proxies, "front-proxy-client", &[], now);
    let as_root = [("x-remote-user", "root"), ("x-remote-group", "system:masters")];
    let impersonating = [("impersonate-user", "root"), ("impersonate-group", "system:masters")];
    let server_only = {
        let leaf = LeafSpec {
            common_name: "root",
            organizations: &["system:masters".to_owned()],
            sans: &[],
            purpose: Purpose::Server,
            lifetime: HOUR,
        };
        ca.issue(&leaf, now).expect("issues")
    };
    let rows: Vec<(&str, Option<Issued>, &[(&str, &str)], u16)> = vec![
        ("anonymous", None, &[], 403),
        ("an administrator", Some(root), &[], 200),
        ("jane", Some(jane.clone()), &[], 403),
        ("another CA with the same name", Some(certificate(&stranger, "root", &masters, now)), &[], 401),
        ("expired", Some(certificate(ca, "root", &masters, now - 3 * HOUR)), &[], 401),
        ("not yet valid", Some(certificate(ca, "root", &masters, now + 3 * HOUR)), &[], 401),
        ("a server's", Some(server_only), &[], 401),
        (
            "the CA of kubelet serving certificates",
            Some(certificate(&server.pki.kubelet_serving_ca, "root", &masters, now)),
            &[],
            401,
        ),
        ("headers without a certificate", None, &as_root, 403),
        ("headers of a user", Some(jane.clone()), &as_root, 403),
        ("headers of a user who is called so", Some(certificate(ca, "front-proxy-client", &[], now)), &as_root, 403),
        (
            "front proxy headers of another client of the CA",
            Some(certificate(proxies, "other", &[], now)),
            &as_root,
            401,
        ),
        (
            "headers of an expired front proxy",
            Some(certificate(proxies, "front-proxy-client", &[], now - 3 * HOUR)),
            &as_root,
            401,
        ),
        ("the front proxy", Some(proxy.clone()), &as_root, 200),
        ("the front proxy without a user", Some(proxy), &[], 401),
        ("impersonation without the right", Some(jane), &impersonating, 403),
        ("anonymous impersonation", None, &impersonating, 403),
    ];
    for (what, certificate, headers, wanted) in rows {
        assert_eq!(server.get(certificate.as_ref(), headers).await, wanted, "{what}");
    }
}

#[tokio::test]
async fn impersonation_is_counted_by_mode() {
    log();
    let server = Server::start().await;
    let now = Timestamp::now();
    let root = certificate(&server.pki.ca, "root", &["system:masters"], now);
    let jane = certificate(&server.pki.ca, "jane", &[], now);
    let (as_jane, as_nobody) = ([("impersonate-user", "jane")], [("impersonate-group", "dev")]);
    assert_eq!(server.get(Some(&root), &as_jane).await, 403, "the request is jane's");
    assert_eq!(server.get(Some(&jane), &[("impersonate-user", "root")]).await, 403);
    assert_eq!(server.get(Some(&root), &as_nobody).await, 400);
    let metrics = server.api.get("/metrics").await;
    let text = metrics.as_str().expect("text");
    let counted = |name: &str, mode: &str, decision: &str| {
        let row = |line: &&str| {
            line.starts_with(&format!("apiserver_impersonation_{name}{{"))
                && line.contains(&format!("mode=\"{mode}\""))
                && line.contains(&format!("decision=\"{decision}\""))
        };
        text.lines().find(row).and_then(|line| line.rsplit(' ').next()).map_or(0.0, |n| n.parse().expect("a number"))
    };
    for (name, mode, decision, wanted) in [
        ("attempts_total", "user-info", "allowed", 1.0),
        ("attempts_total", "", "denied", 1.0),
        ("attempts_duration_seconds_count", "user-info", "allowed", 1.0),
        // One check for the request's verb as jane, and one for impersonating her.
        ("authorization_attempts_total", "user-info", "allowed", 2.0),
        ("authorization_attempts_total", "user-info", "denied", 1.0),
        ("authorization_attempts_total", "legacy", "denied", 1.0),
        ("authorization_attempts_total", "legacy", "allowed", 0.0),
        ("authorization_attempts_duration_seconds_count", "legacy", "denied", 1.0),
    ] {
        assert_eq!(counted(name, mode, decision), wanted, "{name} {mode} {decision}");
    }
}

#[tokio::test]
async fn the_use_of_a_token_in_a_secret_is_recorded_and_counted() {
    log();
    let server = Server::start().await;
    let uid = server.account("bot").await;
    let tracked = "/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking";
    let before = kelson_auth::token::uses::day(Timestamp::now());
    let secret = json!({"metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "bot",
        "kubernetes.io/service-account.uid": uid}}, "type": "kubernetes.io/service-account-token"});
    server.api.create("/api/v1/namespaces/default/secrets", secret).await;
    let issuer =
        TokenIssuer::new(server.key.clone(), IssuerOptions { issuer: ISSUER.into(), ..IssuerOptions::default() });
    let token = issuer.legacy_token("default", "bot", &uid, "s").expect("made");
    let path = "/api/v1/namespaces/default/secrets/s";
    let (code, _) = server.api.call("PATCH", path, json!({"data": {"token": STANDARD.encode(&token)}})).await;
    assert_eq!(code, 200);
    assert_eq!(server.bearer(&token).await, 403, "authenticated, but may not read secrets");
    let label = "kubernetes.io/legacy-token-last-used";
    let marked = server.api.until(path, |secret| secret["metadata"]["labels"][label].is_string()).await;
    let days = [before, kelson_auth::token::uses::day(Timestamp::now())];
    assert!(days.iter().any(|day| marked["metadata"]["labels"][label] == day.as_str()), "{marked}");
    let map = server.api.until(tracked, |map| map["data"]["since"].is_string()).await;
    assert!(days.iter().any(|day| map["data"]["since"] == day.as_str()), "{map}");
    // A second use on the same day writes nothing.
    let revision = marked["metadata"]["resourceVersion"].clone();
    assert_eq!(server.bearer(&token).await, 403);
    let metrics = server.api.get("/metrics").await;
    let text = metrics.as_str().expect("text");
    for name in ["serviceaccount_legacy_manual_token_uses_total", "serviceaccount_legacy_tokens_total"] {
        let row = text.lines().find_map(|line| line.strip_prefix(name)).expect("a row");
        assert!(row.trim().parse::<u32>().expect("a count") > 0, "{name}{row}");
    }
    if days[0] == kelson_auth::token::uses::day(Timestamp::now()) {
        assert_eq!(server.api.get(path).await["metadata"]["resourceVersion"], revision, "once a day");
    }
}

#[tokio::test]
async fn tokens_have_the_configured_lifetime() {
    let key = Key::generate().expect("a key");
    let terms = TokenTerms {
        expiration_max_seconds: Some(3600),
        extend_expiration: false,
        jwks_uri: Some("https://keys.example/jwks".into()),
    };
    let accounts = ServiceAccountConfig {
        issuer: ISSUER.into(),
        issuers_before: Vec::new(),
        verifiers: vec![key.public().clone()],
        key,
        audiences: Vec::new(),
        terms,
    };
    let api = Api::with(|config| config.service_accounts = Some(accounts)).await;
    let document = api.get("/.well-known/openid-configuration").await;
    assert_eq!((&document["issuer"], &document["jwks_uri"]), (&json!(ISSUER), &json!("https://keys.example/jwks")));
    api.create("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "bot"}})).await;
    let path = "/api/v1/namespaces/default/serviceaccounts/bot/token";
    let asked = json!({"spec": {"expirationSeconds": 7200}});
    let answer = api.raw("POST", path, &[("content-type", "application/json")], asked.to_string()).await;
    let warning = answer.headers()["warning"].to_str().expect("text");
    assert!(warning.contains("requested expiration of 7200 seconds shortened to 3600 seconds"), "{warning}");
    let (code, made) = api.call("POST", path, asked).await;
    assert_eq!((code, &made["spec"]["expirationSeconds"]), (201, &json!(3600)), "{made}");
}
