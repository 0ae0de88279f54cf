//! Trust, credentials, proxies, and how connections are used.
use super::tls::trusted;
use super::*;
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kelson_pki::{Authority, LeafSpec, Purpose, San, SwappableCertificate};
use rustls_pki_types::CertificateDer;
use std::convert::Infallible;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

mod several;

fn authority() -> Authority {
    Authority::create("a", Timestamp::now()).unwrap()
}

#[test]
fn the_machines_authorities_are_believed_where_the_kubeconfig_names_none() {
    let now = Timestamp::now();
    let (ours, other) = (authority(), authority());
    let sans = [San::Dns("server".into())];
    let spec = LeafSpec {
        common_name: "server",
        organizations: &[],
        sans: &sans,
        purpose: Purpose::Server,
        lifetime: Duration::from_secs(3600),
    };
    let leaf = kelson_pki::certificates_from_pem(&ours.issue(&spec, now).unwrap().cert_pem).unwrap();
    let machine_of = |pem: &str| kelson_pki::bundle_roots(pem.as_bytes());
    let believed = |config: Config, machine: &Authority| {
        let system: Vec<CertificateDer<'static>> = machine_of(machine.cert_pem());
        trusted(&config, move || system).map(|chains| chains.verify(&leaf, "server", now).is_ok()).map_err(|e| e.0)
    };
    assert_eq!(believed(Config::default(), &ours), Ok(true));
    assert_eq!(believed(Config::default(), &other), Ok(false));
    let named = |authority: &Authority| Config { ca_pem: authority.cert_pem().into(), ..Config::default() };
    assert_eq!(believed(named(&ours), &other), Ok(true));
    assert_eq!(believed(named(&other), &ours), Ok(false), "the machine's do not count beside named ones");
    let in_a_file = Config { ca_file: Some("/ca".into()), ..Config::default() };
    assert_eq!(believed(in_a_file, &ours), Ok(false), "what the file lacks is not made up for");
    assert!(
        believed(
            Config {
                ca_pem: b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n".into(),
                ..Config::default()
            },
            &ours
        )
        .is_err()
    );
}

#[test]
fn servers_are_believed_as_go_believes_them() {
    for row in kelson_doubles::chains::rows_of(kelson_pki::Usage::Server) {
        let config = Config { ca_pem: row.bundle_pem().into(), ..Config::default() };
        let believed = kelson_doubles::chains::believes_server(client_config(&config).expect("a client"), &row);
        assert_eq!(believed.is_ok(), row.is_accepted, "{}: {believed:?}", row.what);
    }
}

/// A server that speaks TLS; each connection is served by `serve`.
async fn listen<F, R>(authority: &Authority, protocol: &[u8], serve: F) -> String
where
    F: Fn(TlsStream<TcpStream>) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let at = listener.local_addr().expect("its address");
    let spec = LeafSpec {
        common_name: "server",
        organizations: &[],
        sans: &[San::Ip(at.ip())],
        purpose: Purpose::Server,
        lifetime: Duration::from_secs(3600),
    };
    let issued = authority.issue(&spec, Timestamp::now()).expect("issued");
    let mut tls = rustls::ServerConfig::builder_with_provider(kelson_pki::provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_cert_resolver(SwappableCertificate::new(&issued).expect("a certificate"));
    tls.alpn_protocols = vec![protocol.to_vec()];
    let acceptor = TlsAcceptor::from(std::sync::Arc::new(tls));
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.expect("accepted");
            let (acceptor, serve) = (acceptor.clone(), serve.clone());
            tokio::spawn(async move {
                let stream = acceptor.accept(tcp).await.expect("TLS");
                serve(stream).await;
            });
        }
    });
    format!("https://{at}")
}

/// A server as the reference's: a hundred streams on a connection. Answers begin and never end.
async fn server(authority: &Authority) -> String {
    let serve = |stream: TlsStream<TcpStream>| async move {
        let service = service_fn(|_: Request<Incoming>| async {
            let first = futures::stream::iter([Ok::<_, Infallible>(Frame::data(bytes::Bytes::from("x")))]);
            let body = futures::StreamExt::chain(first, futures::stream::pending());
            Ok::<_, Infallible>(Response::new(StreamBody::new(body)))
        });
        let mut http = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
        let _ = http.max_concurrent_streams(100).serve_connection(TokioIo::new(stream), service).await;
    };
    listen(authority, b"h2", serve).await
}

/// Answers 200 with the headers that it was sent to a request with this token, and 401 to every other.
async fn knows(authority: &Authority, token: &'static str) -> String {
    let serve = move |stream: TlsStream<TcpStream>| async move {
        let service = service_fn(move |request: Request<Incoming>| async move {
            let known = request.headers().get("authorization").is_some_and(|v| v == format!("Bearer {token}").as_str());
            let code = if known { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
            let shown = format!("{:?}", request.headers());
            Ok::<_, Infallible>(
                Response::builder().status(code).body(Full::new(Bytes::from(shown))).expect("an answer"),
            )
        });
        let http = hyper::server::conn::http1::Builder::new();
        let _ = http.serve_connection(TokioIo::new(stream), service).await;
    };
    listen(authority, b"http/1.1", serve).await
}

async fn ask(remote: &Remote) -> (u16, String) {
    let answer = remote.send(Request::get("/x").body(Bytes::new()).expect("a request")).await.expect("answered");
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    (code, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn a_plugin_runs_again_after_a_401() {
    let authority = authority();
    let server = knows(&authority, "new").await;
    let dir = tempfile::tempdir().expect("a directory");
    let says = dir.path().join("says");
    std::fs::write(&says, "old").expect("written");
    let count = dir.path().join("count");
    let script = format!(
        "echo x >> {}; printf '{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{{\"token\":\"%s\"}}}}' \"$(cat {})\"",
        count.display(),
        says.display()
    );
    let exec =
        serde_json::json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]});
    let plugin = crate::exec::ExecPlugin::parse(&exec, &Default::default(), b"", dir.path()).expect("a plugin");
    let config = Config {
        server,
        ca_pem: authority.cert_pem().into(),
        credentials: Credentials::Exec(plugin),
        ..Config::default()
    };
    let remote = Remote::new(config).expect("a transport");
    let asked = || std::fs::read_to_string(&count).unwrap_or_default().lines().count();
    assert_eq!((ask(&remote).await.0, asked()), (401, 1));
    std::fs::write(&says, "new").expect("written");
    // No sooner than it may be asked again.
    remote.current.lock().checked = std::time::Instant::now().checked_sub(RECHECK_REFUSED);
    assert_eq!((ask(&remote).await.0, asked()), (200, 2));
    remote.current.lock().checked = std::time::Instant::now().checked_sub(RECHECK);
    assert_eq!((ask(&remote).await.0, asked()), (200, 2), "what is good is kept");
}

#[tokio::test]
async fn requests_impersonate_and_go_through_the_proxy_of_the_file() {
    let authority = authority();
    let server = knows(&authority, "t").await;
    // A proxy that carries one connection after the other.
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let proxy = format!("http://{}", listener.local_addr().expect("its address"));
    let carried = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&carried);
    tokio::spawn(async move {
        loop {
            let (mut from, _) = listener.accept().await.expect("accepted");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(from.read_u8().await.expect("a head"));
            }
            let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
            let to = line.split(' ').nth(1).expect("CONNECT names a server").to_owned();
            heard.lock().push(line);
            let mut to = TcpStream::connect(to).await.expect("connected");
            from.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("written");
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut from, &mut to).await });
        }
    });
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: '{server}', certificate-authority-data: {}, proxy-url: '{proxy}'}}}}]\n\
         users: [{{name: u, user: {{token: t, as: jane, as-groups: [dev]}}}}]\n",
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, authority.cert_pem())
    );
    let remote = Remote::new(Config::parse(text.as_bytes(), std::path::Path::new("/")).expect("a kubeconfig"));
    let (code, sent) = ask(&remote.expect("a transport")).await;
    assert_eq!(code, 200);
    assert!(
        sent.contains("\"impersonate-user\": \"jane\"") && sent.contains("\"impersonate-group\": \"dev\""),
        "{sent}"
    );
    let to = server.trim_start_matches("https://");
    assert_eq!(*carried.lock(), [format!("CONNECT {to} HTTP/1.1")]);
}

#[test]
fn faults_that_show_later_name_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let of = |cluster: &str| {
        let file = dir.path().join("kubeconfig");
        let text = format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k}}}}]\nclusters: [{{name: k, cluster: {cluster}}}]\n"
        );
        std::fs::write(&file, text).expect("written");
        Remote::new(Config::load(&file).expect("a kubeconfig")).err().map(|e| e.0).expect("a fault")
    };
    for (cluster, part) in [
        ("{server: 'http://h:1'}", "must be an https URL"),
        ("{server: 'https://h:1', proxy-url: 'ftp://p'}", "proxy-url: "),
        ("{server: 'https://h:1', certificate-authority-data: eA==}", "certificate authority"),
    ] {
        let fault = of(cluster);
        assert!(fault.starts_with(&dir.path().join("kubeconfig").display().to_string()), "{fault}");
        assert!(fault.contains(part), "{fault}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_verified_gets_credentials_where_the_file_says_so() {
    let (ours, other) = (authority(), authority());
    let server = knows(&ours, "t").await;
    let of = |insecure| Config {
        server: server.clone(),
        ca_pem: other.cert_pem().into(),
        credentials: Credentials::Token("t".into()),
        insecure_skip_tls_verify: insecure,
        ..Config::default()
    };
    assert_eq!(ask(&Remote::new(of(true)).expect("a transport")).await.0, 200);
    let request = Request::get("/x").body(Bytes::new()).expect("a request");
    assert!(Remote::new(of(false)).expect("a transport").send(request).await.is_err());
}

#[tokio::test]
async fn watches_leave_a_place_for_those_who_come_after_them() {
    let authority = Authority::create("a", Timestamp::now()).expect("an authority");
    let server = server(&authority).await;
    let config = Config { server, ca_pem: authority.cert_pem().into(), ..Config::default() };
    let remote = Remote::new(config).expect("a transport");
    let mut open = Vec::new();
    for n in 0..250 {
        let request = Request::get("/watch").body(bytes::Bytes::new()).expect("a request");
        let answer = tokio::time::timeout(Duration::from_secs(60), remote.send(request)).await;
        let mut answer = answer.unwrap_or_else(|_| panic!("request {n} waits for a place")).expect("answered");
        assert!(answer.body_mut().frame().await.is_some(), "it begins");
        open.push(answer);
    }
    // Places are free again when their answers are dropped.
    let pools = || remote.current.lock().pools.as_ref().map_or(0, Pools::count);
    assert_eq!(pools(), 4);
    open.clear();
    let request = Request::get("/watch").body(bytes::Bytes::new()).expect("a request");
    remote.send(request).await.expect("answered");
    assert_eq!(pools(), 4);
}
