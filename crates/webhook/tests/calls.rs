//! Calls against a real server: request contents, connection reuse, credentials per server, and every kind of failure.
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Version, header};
use kelson_doubles::webhook::{Behaviour, ReceivedRequest, TestServer};
use kelson_webhook::{
    Backend, Call, CallError, Credentials, Location, OwnCall, OwnServer, ServiceResolver, Target, WebhookClient,
};

struct To(Result<SocketAddr, String>);
impl ServiceResolver for To {
    fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<Backend, String> {
        assert_eq!((namespace, name, port), ("ns", "svc", 8443));
        self.0.clone().map(Backend::from)
    }
}

fn client(to: SocketAddr) -> WebhookClient {
    WebhookClient::new(Arc::new(To(Ok(to))), Credentials::default())
}

fn service(ca: &str) -> Target {
    let location = Location::Service { namespace: "ns".into(), name: "svc".into(), path: "/mutate".into(), port: 8443 };
    Target { location, ca_bundle: ca.as_bytes().to_vec() }
}

fn url(server: &TestServer, host: &str) -> Target {
    let location = Location::Url(format!("https://{host}:{}/path", server.address.port()));
    Target { location, ca_bundle: server.ca().as_bytes().to_vec() }
}

fn call(timeout: Duration) -> Call {
    Call { body: Bytes::from_static(b"{\"a\":1}"), timeout, answer_bytes_max: 1000 }
}

const SOON: Duration = Duration::from_secs(10);

fn ok(_: &ReceivedRequest) -> Behaviour {
    Behaviour::Answer(200, b"{}".to_vec())
}

#[tokio::test]
async fn a_service_is_reached_at_its_endpoint_under_its_name() {
    let server = TestServer::start(&["svc.ns.svc"], ok).await;
    let client = client(server.address);
    for _ in 0..3 {
        assert_eq!(client.call(&service(server.ca()), call(SOON)).await.unwrap(), "{}");
    }
    let seen = server.seen();
    assert_eq!(seen[0].path, "/mutate?timeout=10s");
    assert_eq!(seen[0].headers[header::HOST], "svc.ns.svc:8443");
    assert_eq!(seen[0].headers[header::CONTENT_TYPE], "application/json");
    assert_eq!(seen[0].headers[header::USER_AGENT], "kube-apiserver-admission");
    assert!(!seen[0].headers.contains_key(header::AUTHORIZATION));
    assert_eq!((seen[0].version, &seen[0].body[..]), (Version::HTTP_11, &b"{\"a\":1}"[..]));
    assert_eq!(server.connections(), 1, "the connection is kept");
}

#[tokio::test]
async fn a_server_on_this_machine_is_spoken_to_in_http2() {
    let server =
        TestServer::start(&["localhost"], |_| Behaviour::Slow(Duration::from_millis(50), b"{}".to_vec())).await;
    let client = client(server.address);
    let target = url(&server, "127.0.0.1");
    client.call(&target, call(SOON)).await.unwrap();
    let (a, b) = tokio::join!(client.call(&target, call(SOON)), client.call(&target, call(SOON)));
    assert!(a.is_ok() && b.is_ok());
    assert!(server.seen().iter().all(|s| s.version == Version::HTTP_2));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn only_the_authorities_that_are_named_count() {
    let server = TestServer::start(&["svc.ns.svc"], ok).await;
    let client = client(server.address);
    let failed = |target: Target| {
        let client = &client;
        async move { client.call(&target, call(SOON)).await.unwrap_err().to_string() }
    };
    let unknown = "Post \"https://svc.ns.svc:8443/mutate?timeout=10s\": tls: failed to verify certificate: x509: \
                   certificate signed by unknown authority";
    let next = server.change_authority(&["svc.ns.svc"]);
    let replaced = failed(service(server.ca())).await;
    assert!(replaced.starts_with(unknown), "{replaced}");
    assert_eq!(failed(service("")).await, unknown, "the machine's own authorities");
    client.call(&service(&next), call(SOON)).await.expect("the new bundle counts at once");
    let other = server.change_authority(&["other.ns.svc"]);
    let named = failed(service(&other)).await;
    assert!(named.ends_with("x509: certificate is valid for other.ns.svc, 127.0.0.1, not svc.ns.svc"), "{named}");
}

#[tokio::test]
async fn a_certificate_that_is_its_own_bundle_is_taken() {
    // No chain connects the server's certificate to itself, but it is exactly the certificate in the bundle.
    let server = TestServer::start(&["svc.ns.svc"], ok).await;
    client(server.address).call(&service(server.certificate()), call(SOON)).await.expect("the named one");
    let other = TestServer::start(&["svc.ns.svc"], ok).await;
    let refused = client(other.address).call(&service(server.certificate()), call(SOON)).await.unwrap_err();
    assert!(refused.to_string().ends_with("certificate signed by unknown authority"), "{refused}");
    let elsewhere = TestServer::start(&["other.ns.svc"], ok).await;
    let refused = client(elsewhere.address).call(&service(elsewhere.certificate()), call(SOON)).await.unwrap_err();
    assert!(refused.to_string().contains("x509"), "a named certificate must be for the server's name too: {refused}");
}

#[tokio::test]
async fn every_fault_of_a_server_is_an_error_in_bounded_time() {
    let cases: Vec<(&str, Behaviour, &str)> = vec![
        ("hang", Behaviour::Hang, "context deadline exceeded"),
        ("stall", Behaviour::Stall, "context deadline exceeded"),
        ("slow", Behaviour::Slow(Duration::from_secs(20), vec![]), "context deadline exceeded"),
        ("break", Behaviour::Break, "stream error received"),
        ("large", Behaviour::Answer(200, vec![b' '; 1001]), "response body is larger than 1000 bytes"),
        (
            "redirect",
            Behaviour::Redirect("https://127.0.0.1:1/".into()),
            "the server responded with the status code 302 but did not return more information",
        ),
        (
            "error",
            Behaviour::Answer(500, b"{}".to_vec()),
            "an error on the server (\"unknown\") has prevented the request from succeeding",
        ),
        ("empty", Behaviour::Answer(200, vec![]), "0-length response with status code: 200"),
    ];
    let behaviours: Vec<Behaviour> = cases.iter().map(|(_, b, _)| b.clone()).collect();
    let names: Vec<&str> = cases.iter().map(|(n, ..)| *n).collect();
    let server = TestServer::start(&["localhost"], move |seen| {
        let asked = seen.path.trim_start_matches('/').split('?').next().unwrap_or_default();
        match names.iter().position(|n| *n == asked) {
            Some(at) => behaviours[at].clone(),
            None => ok(seen),
        }
    })
    .await;
    let client = client(server.address);
    let target = |path: &str| Target {
        location: Location::Url(format!("https://127.0.0.1:{}/{path}", server.address.port())),
        ca_bundle: server.ca().as_bytes().to_vec(),
    };
    let begun = Instant::now();
    for (name, _, want) in &cases {
        let error = client.call(&target(name), call(Duration::from_millis(400))).await.unwrap_err();
        assert!(error.to_string().contains(want), "{name}: {error}");
        assert_eq!(matches!(error, CallError::Timeout(_)), want.contains("deadline"), "{name}");
    }
    assert!(begun.elapsed() < Duration::from_secs(8));
    client.call(&target("fine"), call(SOON)).await.expect("the client is none the worse");
}

#[tokio::test]
async fn who_cannot_be_reached_is_named() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = client(closed).call(&service(""), call(SOON)).await.unwrap_err().to_string();
    assert_eq!(
        refused,
        format!("Post \"https://svc.ns.svc:8443/mutate?timeout=10s\": dial tcp {closed}: connect: connection refused")
    );
    let none = To(Err("no endpoints available for service \"svc\"".into()));
    let client = WebhookClient::new(Arc::new(none), Credentials::default());
    let none = client.call(&service(""), call(SOON)).await.unwrap_err().to_string();
    assert!(none.ends_with("?timeout=10s\": no endpoints available for service \"svc\""), "{none}");
}

#[tokio::test]
async fn credentials_go_to_the_host_they_are_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    std::fs::write(&file, "users: [{name: '*.ns.svc:8443', user: {token: t0k}}]").unwrap();
    let server = TestServer::start(&["svc.ns.svc", "localhost"], ok).await;
    let client = WebhookClient::new(Arc::new(To(Ok(server.address))), Credentials::load(&file).unwrap());
    client.call(&service(server.ca()), call(SOON)).await.unwrap();
    client.call(&url(&server, "localhost"), call(SOON)).await.unwrap();
    let sent: Vec<_> = server.seen().iter().map(|s| s.headers.get(header::AUTHORIZATION).cloned()).collect();
    assert_eq!(sent, [Some("Bearer t0k".parse().unwrap()), None]);
}

#[tokio::test]
async fn calls_beyond_the_bound_wait_for_their_turn() {
    let server =
        TestServer::start(&["svc.ns.svc"], |_| Behaviour::Slow(Duration::from_millis(50), b"{}".to_vec())).await;
    let client = Arc::new(client(server.address));
    let ca = server.ca().to_owned();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..130 {
        let (client, ca) = (Arc::clone(&client), ca.clone());
        calls.spawn(async move { client.call(&service(&ca), call(SOON)).await });
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    // The number of connections proves nothing: a connection that was opened for a call stays open even if the call
    // then used another one.
    let most = server.most_at_once();
    assert!((2..=100).contains(&most), "{most} calls at once");
}

/// A server that echoes the request, or fails.
struct Own;
impl OwnServer for Own {
    fn post(&self, path: String, body: Bytes, _: usize) -> OwnCall<'_> {
        Box::pin(async move {
            if path.starts_with("/hang") {
                std::future::pending::<()>().await;
            }
            let status = if path.starts_with("/missing") { 404 } else { 200 };
            let reported = format!("{path} {}", String::from_utf8_lossy(&body));
            Ok(http::Response::builder().status(status).body(Bytes::from(reported)).expect("a status and a body"))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn the_server_that_calls_is_asked_without_leaving_the_process() {
    let nowhere = Arc::new(To(Err("nobody is asked".to_owned())));
    let client = WebhookClient::new(nowhere, Credentials::default()).with_own_server(Arc::new(Own));
    let ask = async |path: &str| {
        let (namespace, name) = ("default".to_owned(), "kubernetes".to_owned());
        let location = Location::Service { namespace, name, path: path.to_owned(), port: 443 };
        client.call(&Target { location, ca_bundle: Vec::new() }, call(SOON)).await.map_err(|e| e.to_string())
    };
    assert_eq!(ask("/apis/x").await.unwrap(), "/apis/x?timeout=10s {\"a\":1}");
    assert_eq!(ask("/missing").await.unwrap_err(), "the server could not find the requested resource");
    assert!(ask("/hang").await.unwrap_err().ends_with("context deadline exceeded"));
}
