//! Forged requests, some from users who may request certificates: none is approved, and none that was approved by
//! mistake is signed.
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kelson_pki::{Authority, KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING, Key, San, create_request};
use kelson_simulation::Api;
use serde_json::json;

use crate::testing::run;
use crate::{Authorities, Config};

const CSRS: &str = "certificates.k8s.io/v1/certificatesigningrequests";
const RBAC: &str = "rbac.authorization.k8s.io/v1";
const JOINS: &str = "system:bootstrap:x";
const NODE: &str = "system:node:n1";

/// A request with this subject and these names as PEM.
fn request(name: &str, groups: &[&str], sans: &[San]) -> String {
    let groups: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
    create_request(&Key::generate().unwrap(), name, &groups, sans).unwrap()
}

/// The same with one changed byte, so that the signature does not match.
fn forged(pem: &str) -> String {
    let body: String = pem.lines().filter(|l| !l.starts_with('-')).collect();
    let mut der = STANDARD.decode(body).unwrap();
    let at = der.windows(2).position(|w| w == b"n1").unwrap();
    der[at + 1] = b'2';
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", STANDARD.encode(der))
}

/// Lets this user request certificates, and have any node's certificate approved.
async fn may_join(api: &Api, user: &str, name: &str) {
    let rule = json!({"apiGroups": ["certificates.k8s.io"], "verbs": ["create", "get", "list", "watch"],
        "resources": ["certificatesigningrequests/nodeclient", "certificatesigningrequests/selfnodeclient",
            "certificatesigningrequests"]});
    api.create(&format!("{RBAC}/clusterroles"), json!({"metadata": {"name": name}, "rules": [rule]})).await;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}]});
    api.create(&format!("{RBAC}/clusterrolebindings"), binding).await;
}

/// The fault, the user, the signer, the request, and the usages.
type Row = (&'static str, &'static str, &'static str, String, &'static [&'static str]);

fn made_up() -> [Row; 16] {
    let nodes = &["system:nodes"][..];
    let (client, server) = (&["digital signature", "client auth"][..], &["digital signature", "server auth"][..]);
    let dns = |name: &str| San::Dns(name.into());
    let ip = |text: &str| San::Ip(text.parse().unwrap());
    let kubelet = KUBE_APISERVER_CLIENT_KUBELET;
    [
        ("another group", JOINS, kubelet, request("system:node:n3", &["system:masters"], &[]), client),
        ("a group more", JOINS, kubelet, request("system:node:n3", &["system:nodes", "system:masters"], &[]), client),
        ("no group", JOINS, kubelet, request("system:node:n3", &[], &[]), client),
        ("a user's name", JOINS, kubelet, request("admin", nodes, &[]), client),
        ("no name", JOINS, kubelet, request("", nodes, &[]), client),
        ("a name beside", JOINS, kubelet, request("system:node:n3", nodes, &[dns("kubernetes")]), client),
        ("an address beside", JOINS, kubelet, request("system:node:n3", nodes, &[ip("10.0.0.1")]), client),
        ("of a server", JOINS, kubelet, request("system:node:n3", nodes, &[]), server),
        (
            "one use more",
            JOINS,
            kubelet,
            request("system:node:n3", nodes, &[]),
            &["digital signature", "client auth", "server auth"][..],
        ),
        ("an authority", JOINS, kubelet, request("system:node:n3", nodes, &[]), &["client auth", "cert sign"][..]),
        ("serving for who joins", JOINS, KUBELET_SERVING, request("system:node:n3", nodes, &[dns("n3")]), server),
        ("another node's name", NODE, KUBELET_SERVING, request(NODE, nodes, &[dns("n2")]), server),
        ("another node's address", NODE, KUBELET_SERVING, request(NODE, nodes, &[ip("10.0.0.6")]), server),
        (
            "the API's name",
            NODE,
            KUBELET_SERVING,
            request(NODE, nodes, &[dns("n1"), dns("kubernetes.default.svc")]),
            server,
        ),
        ("mail", NODE, KUBELET_SERVING, request(NODE, nodes, &[dns("n1"), San::Email("a@b.c".into())]), server),
        ("no names", NODE, KUBELET_SERVING, request(NODE, nodes, &[]), server),
    ]
}

#[tokio::test(start_paused = true)]
async fn made_up_requests_are_neither_approved_nor_signed() {
    let api = Api::start().await;
    let ca = Arc::new(Authority::create("ca", kelson_meta::Clock::now(&api.clock)).unwrap());
    let names = ["certificatesigningrequest-approving-controller", "certificatesigningrequest-signing-controller"];
    let signers =
        Authorities { signer: Some(Arc::clone(&ca)), kubelet_serving_signer: Some(ca), ..Authorities::default() };
    let config = Config { authorities: signers.fixed(), ..Config::default() };
    let _running = run(&api, &names, config).await;
    may_join(&api, JOINS, "join").await;
    may_join(&api, NODE, "renew").await;
    for (name, address) in [("n1", "10.0.0.5"), ("n2", "10.0.0.6")] {
        let addresses = json!([{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]);
        api.create("v1/nodes", json!({"metadata": {"name": name}, "status": {"addresses": addresses}})).await;
    }
    let rows = made_up();
    for (i, (what, user, signer, pem, usages)) in rows.iter().enumerate() {
        let spec = json!({"request": STANDARD.encode(pem), "signerName": signer, "usages": usages});
        let made =
            api.acting_as(user).try_create(CSRS, json!({"metadata": {"name": format!("r{i}")}, "spec": spec})).await;
        assert!(made.is_ok(), "{what}: {made:?}");
    }
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    for (i, (what, ..)) in rows.iter().enumerate() {
        let status = api.get(CSRS, "", &format!("r{i}")).await.unwrap()["status"].clone();
        assert!(status["conditions"].is_null() && status["certificate"].is_null(), "{what}: {status}");
    }
    // All are approved by mistake, and the signers still apply their own rules.
    for (i, (what, ..)) in rows.iter().enumerate().take(10) {
        let approved = json!({"conditions": [{"type": "Approved", "status": "True", "reason": "R", "message": "m"}]});
        api.patch(CSRS, "", &format!("r{i}"), "approval", json!({"status": approved})).await;
        api.settle().await;
        let status = api.get(CSRS, "", &format!("r{i}")).await.unwrap()["status"].clone();
        assert!(status["certificate"].is_null(), "{what}: signed");
    }
    // A valid request is approved and signed, so nothing above was rejected for another reason.
    let good = STANDARD.encode(request("system:node:n3", &["system:nodes"], &[]));
    let spec = json!({"request": good, "signerName": KUBE_APISERVER_CLIENT_KUBELET,
        "usages": ["digital signature", "client auth"]});
    api.acting_as(JOINS).create(CSRS, json!({"metadata": {"name": "good"}, "spec": spec})).await;
    api.settle().await;
    assert!(api.get(CSRS, "", "good").await.unwrap()["status"]["certificate"].is_string());
}

#[tokio::test(start_paused = true)]
async fn malformed_requests_are_not_accepted() {
    let api = Api::start().await;
    let spec = |request: &str, usages: &[&str], signer: &str| json!({"metadata": {"name": "r"}, "spec": {"request": request, "signerName": signer, "usages": usages}});
    let good = STANDARD.encode(request(NODE, &["system:nodes"], &[]));
    let large = STANDARD.encode("x".repeat(1 << 20));
    let other = STANDARD.encode("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let client = &["client auth"][..];
    let forged = STANDARD.encode(forged(&request(NODE, &["system:nodes"], &[])));
    let broken = STANDARD.encode("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n");
    for (what, object) in [
        ("nothing", spec("", client, "a.b/c")),
        ("no base64", spec("%%%", client, "a.b/c")),
        ("a megabyte", spec(&large, client, "a.b/c")),
        ("another kind", spec(&other, client, "a.b/c")),
        ("signed by another key", spec(&forged, client, "a.b/c")),
        ("no DER", spec(&broken, client, "a.b/c")),
        ("no usage", spec(&good, &[], "a.b/c")),
        ("an unknown usage", spec(&good, &["everything"], "a.b/c")),
        ("a signer without domain", spec(&good, client, "signer")),
        ("no signer", spec(&good, client, "")),
    ] {
        let code = api.try_create(CSRS, object).await.err().and_then(|e| e.status().map(|s| s.code));
        assert!(matches!(code, Some(400 | 422)), "{what}: {code:?}");
    }
    assert!(api.try_create(CSRS, spec(&good, client, "a.b/c")).await.is_ok());
}
