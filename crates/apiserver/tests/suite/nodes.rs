//! Connections to kubelets over real sockets, because the peer's certificate is tested.

use std::sync::Arc;

use crate::common::Api;
use http_body_util::BodyExt as _;
use kelson_apiserver::{KubeletConfig, KubeletTrust};
use kelson_pki::{ClusterPki, Component, KUBELET_CLIENTS, LeafSpec, PkiOptions, Purpose, San, SwappableCertificate};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;

const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

struct Cluster {
    api: Api,
    pki: ClusterPki,
    _dir: tempfile::TempDir,
}

impl Cluster {
    async fn start(local_node: Option<&str>) -> Self {
        Self::with(local_node, |_| {}).await
    }

    async fn with(local_node: Option<&str>, change: impl FnOnce(&mut kelson_apiserver::Config)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let now = jiff::Timestamp::now();
        let pki = ClusterPki::open(&PkiOptions::new(dir.path().join("pki")), now).expect("a PKI");
        let client = pki.issue_component(Component::KubeletClient, now).expect("a certificate");
        let client = SwappableCertificate::new(&client).expect("a certificate that can be used");
        let api = Api::with(|config| {
            config.kubelet = Some(KubeletConfig {
                client,
                trust: KubeletTrust::Cluster(pki.kubelet_serving_bundle()),
                address_types: Vec::new(),
                local_node: local_node.map(str::to_owned),
            });
            change(config);
        })
        .await;
        Self { api, pki, _dir: dir }
    }

    /// A server on loopback with a certificate of this user and CA. It answers every request with the subject of the client's certificate
    /// and the request.
    async fn kubelet(&self, user: &str, ca: &kelson_pki::Authority) -> u16 {
        let organizations = ["system:nodes".to_owned()];
        let sans = [San::Ip("127.0.0.1".parse().expect("an address"))];
        let spec = LeafSpec {
            common_name: user,
            organizations: &organizations,
            sans: &sans,
            purpose: Purpose::Server,
            lifetime: DAY,
        };
        let issued = ca.issue(&spec, jiff::Timestamp::now()).expect("a certificate");
        let mut roots = rustls::RootCertStore::empty();
        let client_ca = kelson_pki::certificates_from_pem(self.pki.ca.cert_pem()).expect("the CA");
        roots.add(client_ca[0].clone()).expect("a root");
        let provider = kelson_pki::provider();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(verifier.build().expect("a verifier"))
            .with_cert_resolver(SwappableCertificate::new(&issued).expect("a key"));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let port = listener.local_addr().expect("an address").port();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let Ok(mut tls) = acceptor.accept(tcp).await else { continue };
                let mut head = [0; 4096];
                // A client that rejects the certificate sends nothing.
                let length = match tls.read(&mut head).await {
                    Ok(length) if length > 0 => length,
                    _ => continue,
                };
                let leaf = tls.get_ref().1.peer_certificates().and_then(|c| c.first()).expect("verified").clone();
                let info = kelson_pki::CertInfo::from_der(&leaf).expect("parses");
                let head = String::from_utf8_lossy(&head[..length]);
                let body = match head.starts_with("GET /metrics/resource ") {
                    true => usage_of_one_core(),
                    false => format!("{} {:?}\n{head}", info.common_name, info.organizations),
                };
                let answer =
                    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                let _ = tls.write_all(answer.as_bytes()).await;
                let _ = tls.shutdown().await;
            }
        });
        port
    }

    /// Sends a request through the proxy of a node whose kubelet is at `address` and `port`.
    async fn ask(&self, node: &str, address: (&str, &str), port: u16) -> (u16, String) {
        let nodes = "/api/v1/nodes";
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
        self.api.create(nodes, object).await;
        let status = json!({"status": {"addresses": [{"type": address.0, "address": address.1}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
        let (code, answer) = self.api.call("PATCH", &format!("{nodes}/{node}/status"), status).await;
        assert_eq!(code, 200, "{answer}");
        let (code, answer) = self.api.call("GET", &format!("{nodes}/{node}/proxy/pods"), serde_json::Value::Null).await;
        (code, answer["message"].as_str().or(answer.as_str()).unwrap_or_default().to_owned())
    }
}

/// A report of a node on which one core has been busy since the Unix epoch.
fn usage_of_one_core() -> String {
    let now = jiff::Timestamp::now().as_millisecond();
    let cpu = format!("node_cpu_usage_seconds_total {}.{:03} {now}", now / 1000, now % 1000);
    format!("{cpu}\nnode_memory_working_set_bytes 2048 {now}\n")
}

#[tokio::test]
async fn kubelets_are_asked_for_the_usage_of_their_nodes() {
    let cluster = Cluster::with(Some("n1"), |config| config.resource_metrics = true).await;
    let port = cluster.kubelet("system:node:n1", &cluster.pki.kubelet_serving_ca.clone()).await;
    assert_eq!(cluster.ask("n1", ("InternalIP", "127.0.0.1"), port).await.0, 200);
    let uri = "/apis/metrics.k8s.io/v1beta1/nodes/n1";
    let known = async {
        loop {
            let (code, answer) = cluster.api.call("GET", uri, serde_json::Value::Null).await;
            match code {
                200 => return answer,
                503 => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
                _ => panic!("{code}: {answer}"),
            }
        }
    };
    let node = tokio::time::timeout(std::time::Duration::from_secs(60), known).await.expect("two samples");
    let cpu: kelson_meta::Quantity = node["usage"]["cpu"].as_str().expect("text").parse().expect("a quantity");
    assert!((990..=1010).contains(&cpu.milli_value()), "{node}");
    assert_eq!(node["usage"]["memory"], "2Ki", "{node}");
    let metrics =
        cluster.api.raw("GET", "/metrics", &[], "").await.into_body().collect().await.expect("a body").to_bytes();
    let metrics = String::from_utf8_lossy(&metrics);
    assert!(metrics.contains("metrics_server_storage_points{type=\"node\"} 1"), "{metrics}");
}

#[tokio::test]
async fn a_kubelet_proves_which_node_it_is() {
    let cluster = Cluster::start(Some("n1")).await;
    let serving = cluster.pki.kubelet_serving_ca.clone();
    let own = cluster.kubelet("system:node:n1", &serving).await;
    let (code, text) = cluster.ask("n1", ("InternalIP", "127.0.0.1"), own).await;
    assert_eq!(code, 200, "{text}");
    let subject = format!("kube-apiserver-kubelet-client [{KUBELET_CLIENTS:?}]");
    assert_eq!(text.lines().next(), Some(subject.as_str()), "the server is not in system:masters there");

    let cluster = Cluster::start(Some("n2")).await;
    let serving = cluster.pki.kubelet_serving_ca.clone();
    let other = cluster.kubelet("system:node:n1", &serving).await;
    let (code, why) = cluster.ask("n2", ("InternalIP", "127.0.0.1"), other).await;
    assert!(code == 503 && why.contains("not of the kubelet of node \"n2\""), "{code} {why}");

    // The API server's certificate was issued by a CA that was trusted for kubelets before.
    let cluster = Cluster::start(Some("n3")).await;
    let ca = cluster.pki.ca.clone();
    let server = cluster.kubelet("kube-apiserver", &ca).await;
    let (code, why) = cluster.ask("n3", ("InternalIP", "127.0.0.1"), server).await;
    assert!(code == 503 && why.contains("\"kube-apiserver\""), "{code} {why}");
}

#[tokio::test]
async fn one_user_cannot_take_all_connections_to_backends() {
    let cluster = Cluster::with(Some("n1"), |config| {
        config.authorization = vec![kelson_apiserver::AuthorizationMode::AlwaysAllow];
        config.backends_max = 4;
    })
    .await;
    let port = cluster.kubelet("system:node:n1", &cluster.pki.kubelet_serving_ca.clone()).await;
    assert_eq!(cluster.ask("n1", ("InternalIP", "127.0.0.1"), port).await.0, 200);
    let ask = async |user: &str| {
        let uri = "/api/v1/nodes/n1/proxy/pods";
        let request = http::Request::builder().uri(uri).body(Default::default()).expect("a request");
        cluster.api.send(kelson_auth::UserInfo::new(user, ["system:authenticated"]), request).await
    };
    // Of four connections, three are for ordinary users, and half of those for one user. An answer that is not read holds its
    // connection.
    let held = ask("jane").await;
    assert_eq!(held.status(), 200);
    assert_eq!(ask("jane").await.status(), 429);
    assert_eq!(ask("joe").await.status(), 200, "other users have their share");
    drop(held);
    let again = async {
        while ask("jane").await.status() != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), again).await.expect("a released connection");
}

#[tokio::test]
async fn a_remote_node_cannot_have_a_loopback_address() {
    for (name, address) in [("a", ("InternalIP", "127.0.0.1")), ("b", ("Hostname", "localhost"))] {
        let cluster = Cluster::start(Some("server")).await;
        let serving = cluster.pki.kubelet_serving_ca.clone();
        let port = cluster.kubelet(&format!("system:node:{name}"), &serving).await;
        let (code, why) = cluster.ask(name, address, port).await;
        assert!(code == 503 && why.contains("not allowed"), "{code} {why}");
    }
}

#[tokio::test]
async fn credentials_are_not_passed_to_backends() {
    let cluster = Cluster::start(Some("n1")).await;
    let serving = cluster.pki.kubelet_serving_ca.clone();
    let port = cluster.kubelet("system:node:n1", &serving).await;
    cluster.ask("n1", ("InternalIP", "127.0.0.1"), port).await;
    let headers = [
        ("authorization", "Bearer secret-token"),
        ("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io"),
        ("x-remote-user", "system:admin"),
        ("x-remote-group", "system:masters"),
        ("x-remote-extra-scopes", "all"),
        ("x-custom", "kept"),
    ];
    let answer = cluster.api.raw("GET", "/api/v1/nodes/n1/proxy/pods", &headers, "").await;
    assert_eq!(answer.status(), 200);
    let bytes = answer.into_body().collect().await.expect("a body").to_bytes();
    let seen = String::from_utf8_lossy(&bytes).to_lowercase();
    assert!(seen.contains("x-custom: kept") && seen.contains("v4.channel.k8s.io"), "{seen}");
    for secret in ["secret-token", "c2vjcmv0", "x-remote-", "authorization"] {
        assert!(!seen.contains(secret), "{secret} in {seen}");
    }
}

#[tokio::test]
async fn paths_to_kubelets_must_be_normalized() {
    let cluster = Cluster::start(Some("n1")).await;
    let serving = cluster.pki.kubelet_serving_ca.clone();
    let port = cluster.kubelet("system:node:n1", &serving).await;
    cluster.ask("n1", ("InternalIP", "127.0.0.1"), port).await;
    let ask = async |path: &str| {
        let uri = format!("/api/v1/nodes/n1/proxy{path}");
        cluster.api.raw("GET", &uri, &[], "").await.status().as_u16()
    };
    for good in ["/", "/pods", "/logs/", "/metrics/cadvisor"] {
        assert_eq!(ask(good).await, 200, "{good}");
    }
    for bad in ["//", "//exec/a/b/c", "/./exec/a/b/c", "/x/../exec/a/b/c", "/%2e/exec/a", "/x%2f%2fexec", "/a//b"] {
        assert_eq!(ask(bad).await, 400, "{bad}");
    }
}

/// A cluster with this kubelet trust, and a CA that is not the cluster's.
async fn trusting(trust: impl FnOnce(&str, &str) -> KubeletTrust) -> (Cluster, kelson_pki::Authority) {
    let other = kelson_pki::Authority::create("elsewhere", jiff::Timestamp::now()).expect("an authority");
    let cluster = Cluster::with(Some("n1"), |config| {
        let kubelet = config.kubelet.as_mut().expect("configured");
        let KubeletTrust::Cluster(own) = &kubelet.trust else { panic!("the cluster's CA") };
        kubelet.trust = trust(own, other.cert_pem());
    })
    .await;
    (cluster, other)
}

#[tokio::test]
async fn foreign_kubelet_certificates_are_trusted_only_if_configured() {
    let here = ("InternalIP", "127.0.0.1");
    // Trust of the server; issuer and user of the kubelet's certificate; whether the connection succeeds.
    let own = |own: &str, _: &str| KubeletTrust::Cluster(own.to_owned());
    let both = |own: &str, given: &str| KubeletTrust::Authority { own: own.to_owned(), given: given.to_owned() };
    let all = |_: &str, _: &str| KubeletTrust::Anyone;
    for (trust, elsewhere, user, want) in [
        (own as fn(&str, &str) -> KubeletTrust, true, "system:node:n1", Err("invalid peer certificate")),
        (both, true, "kubelet.example.com", Ok(())),
        (both, false, "system:node:n1", Ok(())),
        (both, false, "system:node:n2", Err("not of the kubelet of node \"n1\"")),
        (all, true, "anybody", Ok(())),
    ] {
        let (cluster, other) = trusting(trust).await;
        let ca = if elsewhere { other } else { cluster.pki.kubelet_serving_ca.clone() };
        let port = cluster.kubelet(user, &ca).await;
        let (code, text) = cluster.ask("n1", here, port).await;
        match want {
            Ok(()) => assert_eq!(code, 200, "{user}: {text}"),
            Err(why) => assert!(code == 503 && text.contains(why), "{user}: {code} {text}"),
        }
    }
}

#[tokio::test]
async fn a_log_is_read_unverified_only_on_request() {
    let (cluster, other) = trusting(|own, _| KubeletTrust::Cluster(own.to_owned())).await;
    let port = cluster.kubelet("anybody", &other).await;
    assert_eq!(cluster.ask("n1", ("InternalIP", "127.0.0.1"), port).await.0, 503);
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}});
    cluster.api.create(pods, pod).await;
    let log = async |query: &str| cluster.api.raw("GET", &format!("{pods}/p/log{query}"), &[], "").await;
    assert_eq!(log("").await.status(), 500);
    assert_eq!(log("?insecureSkipTLSVerifyBackend=false").await.status(), 500);
    let answer = log("?insecureSkipTLSVerifyBackend=true").await;
    assert_eq!(answer.status(), 200);
    let bytes = answer.into_body().collect().await.expect("a body").to_bytes();
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("GET /containerLogs/default/p/c HTTP/1.1") && !text.contains("insecure"), "{text}");
}
