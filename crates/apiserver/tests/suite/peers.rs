//! Two API servers on one storage, one of which serves APIs that the other does not: the other one forwards requests for them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kelson_apiserver::{RuntimeConfig, ServingConfig};
use kelson_auth::UserInfo;
use kelson_pki::{ClusterPki, PkiOptions, SwappableCertificate};
use kelson_store::{Store, StoreOptions};
use serde_json::{Value, json};

use crate::common::{Api, Lines, features};

/// An alpha API, which only one of the servers serves.
const VERSIONS: &str = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const PATIENCE: Duration = Duration::from_secs(30);

/// Servers with a PKI and a storage in common.
struct Servers {
    pki: ClusterPki,
    store: Store,
    _dir: tempfile::TempDir,
}

impl Servers {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pki = ClusterPki::open(&PkiOptions::new(dir.path().join("pki")), Timestamp::now()).unwrap();
        Self { pki, store: Store::in_memory(StoreOptions::default()), _dir: dir }
    }

    /// Starts a server on a machine with this name. `all`: it serves all APIs, else only stable ones.
    async fn start(&self, host: &str, all: bool) -> Api {
        let now = Timestamp::now();
        let names = ClusterPki::server_sans("cluster.local", "10.43.0.1".parse().unwrap(), &[]);
        let serving = SwappableCertificate::new(&self.pki.issue_server(&names, now).unwrap()).unwrap();
        let proxy = SwappableCertificate::new(&self.pki.issue_front_proxy_client(now).unwrap()).unwrap();
        Api::on(self.store.clone(), |config| {
            let bind = SocketAddr::from(([127, 0, 0, 1], 0));
            config.serving = Some(ServingConfig { bind, certificate: serving });
            config.client_ca_pem = self.pki.ca_bundle();
            config.request_header_ca_pem = self.pki.front_proxy_bundle();
            config.front_proxy_client = Some(proxy);
            config.identity_host = Some(host.to_owned());
            config.peer_ca_pem = self.pki.ca_bundle();
            config.runtime_config = if all { Arc::new(RuntimeConfig::all()) } else { Arc::default() };
            config.feature_gates = features();
        })
        .await
    }
}

/// The versions of a group in aggregated discovery.
async fn versions(api: &Api, accept: &str, group: &str) -> Vec<String> {
    let answer = api.raw("GET", "/apis", &[("accept", accept)], "").await;
    assert_eq!(answer.status(), 200);
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    let list: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(list["kind"], "APIGroupDiscoveryList");
    let groups = list["items"].as_array().unwrap();
    let found = groups.iter().find(|found| found["metadata"]["name"] == group);
    let name = |version: &Value| version["version"].as_str().unwrap().to_owned();
    found.map(|group| group["versions"].as_array().unwrap().iter().map(name).collect()).unwrap_or_default()
}

/// Waits until a server knows what its peer serves.
async fn until_listed(api: &Api, wanted: bool) {
    let listed = async {
        while versions(api, AGGREGATED, "admissionregistration.k8s.io").await.contains(&"v1alpha1".to_owned()) != wanted
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, listed).await.expect("discovery follows the peers");
}

fn version(name: &str) -> Value {
    json!({"apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion", "metadata": {"name": name},
        "spec": {}})
}

#[tokio::test]
async fn a_server_forwards_requests_for_what_only_its_peer_serves() {
    let servers = Servers::new();
    let old = servers.start("old", false).await;
    assert_eq!(old.call("GET", VERSIONS, Value::Null).await.0, 404, "no server serves it yet");
    let new = servers.start("new", true).await;
    until_listed(&old, true).await;

    let made = old.create(VERSIONS, version("a.x")).await;
    assert_eq!(new.get(&format!("{VERSIONS}/a.x")).await["metadata"]["uid"], made["metadata"]["uid"]);
    let watch =
        format!("{VERSIONS}?watch=true&resourceVersion={}", made["metadata"]["resourceVersion"].as_str().unwrap());
    let mut lines = Lines::new(old.raw("GET", &watch, &[], "").await);
    new.create(VERSIONS, version("b.x")).await;
    let event = tokio::time::timeout(PATIENCE, lines.next()).await.expect("an event").unwrap();
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("b.x")));

    // The user is the one of the client, here and there.
    let guest = http::Request::get(VERSIONS).body(bytes::Bytes::new()).unwrap();
    assert_eq!(old.send(UserInfo::new("guest", ["guests"]), guest).await.status(), 403);
    // A request that was forwarded is not forwarded again.
    let forwarded = old.raw("GET", VERSIONS, &[("x-kubernetes-peer-proxied", "true")], "").await;
    assert_eq!(forwarded.status(), 404);
    // What no server serves is still unknown.
    assert_eq!(old.call("GET", "/apis/admissionregistration.k8s.io/v9/policies", Value::Null).await.0, 404);

    let own = format!("{AGGREGATED};profile=nopeer");
    assert_eq!(versions(&old, &own, "admissionregistration.k8s.io").await, ["v1"]);
    let group = "admissionregistration.k8s.io";
    assert_eq!(versions(&old, AGGREGATED, group).await, versions(&new, AGGREGATED, group).await);
    let metrics = String::from_utf8(
        old.raw("GET", "/metrics", &[], "").await.into_body().collect().await.unwrap().to_bytes().into(),
    )
    .unwrap();
    let counted = "apiserver_rerouted_request_total{code=\"201\",group=\"internal.apiserver.k8s.io\",resource=\"storageversions\",version=\"v1alpha1\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
    new.running.shutdown().await;
    until_listed(&old, false).await;
    assert_eq!(old.call("GET", VERSIONS, Value::Null).await.0, 404, "the server that served it has left");
}

#[tokio::test]
async fn a_peer_that_cannot_be_reached_is_an_error_and_not_an_unknown_path() {
    let servers = Servers::new();
    let new = servers.start("new", true).await;
    let old = servers.start("old", false).await;
    until_listed(&old, true).await;
    // As after a crash: its Lease stays.
    new.running.server().tasks.shutdown(Duration::ZERO).await;
    let (code, status) = old.call("GET", VERSIONS, Value::Null).await;
    assert_eq!((code, &status["reason"]), (503, &json!("ServiceUnavailable")), "{status}");
    until_listed(&old, true).await;

    let other = servers.start("other", true).await;
    let served = async {
        while old.call("GET", VERSIONS, Value::Null).await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, served).await.expect("a peer that can be reached is found");
    for _ in 0..8 {
        assert_eq!(old.call("GET", VERSIONS, Value::Null).await.0, 200, "whichever peer is tried first");
    }
    drop(other);
}

#[tokio::test]
async fn definitions_are_not_taken_from_peers() {
    let servers = Servers::new();
    let first = servers.start("first", true).await;
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"}, "scope": "Cluster",
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    first.create(DEFINITIONS, definition).await;
    // It reads the definitions of the storage at its start, and then what its peer serves.
    let second = servers.start("second", false).await;
    until_listed(&second, true).await;
    assert_eq!(versions(&second, AGGREGATED, "example.com").await, ["v1"]);
    second.call("DELETE", &format!("{DEFINITIONS}/widgets.example.com"), Value::Null).await;
    let gone = async {
        while !versions(&second, AGGREGATED, "example.com").await.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the definition is not listed for its peer");
}
