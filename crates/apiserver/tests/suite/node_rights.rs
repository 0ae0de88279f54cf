//! What a node's identity must not do: a hundred requests, written from the documented rules of the Node authorizer and
//! NodeRestriction, which are all rejected; and requests that a node needs, which are not.

use crate::common::Api;
use http_body_util::BodyExt as _;
use kelson_apiserver::ServiceAccountConfig;
use kelson_auth::{UserInfo, user};
use serde_json::{Value, json};

const NODES: [&str; 2] = ["n1", "n2"];

fn node() -> UserInfo {
    UserInfo::new("system:node:n1", [user::NODES, user::AUTHENTICATED])
}

/// Two nodes, each with a pod `pN` and its account, secret, config map and claim; unused objects are named `free`.
async fn world() -> Api {
    let key = kelson_pki::Key::generate().expect("a key");
    let accounts = ServiceAccountConfig {
        issuer: "https://kubernetes.default.svc".into(),
        issuers_before: Vec::new(),
        verifiers: vec![key.public().clone()],
        key,
        audiences: Vec::new(),
        terms: Default::default(),
    };
    let api = Api::with(|config| {
        config.admission.usual = vec!["NodeRestriction"];
        config.service_accounts = Some(accounts);
    })
    .await;
    api.running.ready().await;
    api.create("/api/v1/namespaces", json!({"metadata": {"name": "a"}})).await;
    for name in ["1", "2", "free"] {
        api.create("/api/v1/namespaces/a/serviceaccounts", json!({"metadata": {"name": format!("sa{name}")}})).await;
        api.create("/api/v1/namespaces/a/secrets", json!({"metadata": {"name": format!("s{name}")}})).await;
        api.create("/api/v1/namespaces/a/configmaps", json!({"metadata": {"name": format!("c{name}")}})).await;
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let claim = json!({"metadata": {"name": format!("v{name}")}, "spec": spec});
        api.create("/api/v1/namespaces/a/persistentvolumeclaims", claim).await;
        let spec =
            json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}});
        api.create("/api/v1/persistentvolumes", json!({"metadata": {"name": format!("pv{name}")}, "spec": spec})).await;
    }
    for (i, name) in NODES.iter().enumerate() {
        let n = i + 1;
        api.create("/api/v1/nodes", json!({"metadata": {"name": name}})).await;
        api.create("/apis/storage.k8s.io/v1/csinodes", json!({"metadata": {"name": name}, "spec": {"drivers": []}}))
            .await;
        let lease = json!({"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {}});
        api.create("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", lease).await;
        let volumes = json!([{"name": "s", "secret": {"secretName": format!("s{n}")}},
            {"name": "c", "configMap": {"name": format!("c{n}")}},
            {"name": "v", "persistentVolumeClaim": {"claimName": format!("v{n}")}}]);
        let spec = json!({"nodeName": name, "serviceAccountName": format!("sa{n}"), "volumes": volumes,
            "containers": [{"name": "c", "image": "x"}]});
        api.create("/api/v1/namespaces/a/pods", json!({"metadata": {"name": format!("p{n}")}, "spec": spec})).await;
    }
    // The rights of a node follow its pods with a delay.
    let known = async {
        while attempt(&api, "GET ~secrets/s1", &Value::Null).await != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), known).await.expect("the pod's node may read its secret");
    api
}

async fn attempt(api: &Api, row: &str, body: &Value) -> u16 {
    let mut words = row.split_whitespace();
    let (method, path) = (words.next().expect("a method"), words.next().expect("a path"));
    let path = match path.strip_prefix('~') {
        Some(rest) => format!("/api/v1/namespaces/a/{rest}"),
        None => path.to_owned(),
    };
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let mut request = http::Request::builder().method(method).uri(&path).header("content-type", kind);
    for header in words {
        let (name, value) = header.split_once('=').expect("a header");
        request = request.header(name, value);
    }
    let bytes = if body.is_null() { String::new() } else { body.to_string() };
    let answer = api.send(node(), request.body(bytes.into()).expect("a request")).await;
    let code = answer.status().as_u16();
    // A watch that was accepted does not end.
    if code >= 400 {
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        assert!(!body.is_empty(), "{row}: refused without a word");
    }
    code
}

/// Requests without a body.
const PLAIN: &[&str] = &[
    // Secrets and config maps: only those of the node's pods, by name, read-only.
    "GET ~secrets/s2",
    "GET ~secrets/sfree",
    "GET ~secrets",
    "GET /api/v1/secrets",
    "GET ~secrets?watch=true",
    "GET ~secrets?fieldSelector=metadata.name%3Ds2",
    "GET ~secrets?labelSelector=a%3Db",
    "DELETE ~secrets/s1",
    "DELETE ~secrets",
    "GET ~configmaps/c2",
    "GET ~configmaps/cfree",
    "GET ~configmaps",
    "GET /api/v1/configmaps",
    "GET ~configmaps?watch=true",
    "GET ~configmaps?fieldSelector=metadata.name%3Dc2",
    "DELETE ~configmaps/c1",
    "DELETE ~configmaps",
    // Service accounts: only those of its pods.
    "GET ~serviceaccounts/sa2",
    "GET ~serviceaccounts",
    "GET /api/v1/serviceaccounts?watch=true",
    "DELETE ~serviceaccounts/sa1",
    // Nodes: its own.
    "GET /api/v1/nodes",
    "GET /api/v1/nodes?watch=true",
    "GET /api/v1/nodes/n2",
    "GET /api/v1/nodes?fieldSelector=metadata.name%3Dn2",
    "DELETE /api/v1/nodes/n1",
    "DELETE /api/v1/nodes/n2",
    "DELETE /api/v1/nodes",
    "GET /api/v1/nodes/n1/proxy/pods",
    "GET /api/v1/nodes/n2/proxy/pods",
    "POST /api/v1/nodes/n2/proxy/run/a/p2/c",
    // Pods: its own.
    "GET ~pods",
    "GET /api/v1/pods",
    "GET /api/v1/pods?watch=true",
    "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn2",
    "GET /api/v1/pods?fieldSelector=spec.nodeName!%3Dn1",
    "GET ~pods/p2",
    "DELETE ~pods/p2",
    "DELETE ~pods",
    "GET ~pods/p1/log",
    "GET ~pods/p2/log",
    "POST ~pods/p1/exec?command=id",
    "POST ~pods/p2/exec?command=id",
    "GET ~pods/p1/exec?command=id",
    "POST ~pods/p2/attach",
    "POST ~pods/p2/portforward",
    "GET ~pods/p2/proxy/",
    // Claims and volumes: those of its pods, by name, read-only.
    "GET ~persistentvolumeclaims/v2",
    "GET ~persistentvolumeclaims/vfree",
    "GET ~persistentvolumeclaims",
    "GET /api/v1/persistentvolumeclaims?watch=true",
    "DELETE ~persistentvolumeclaims/v1",
    "GET /api/v1/persistentvolumes",
    "GET /api/v1/persistentvolumes/pvfree",
    "DELETE /api/v1/persistentvolumes/pvfree",
    // Leases and CSINodes: its own.
    "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
    "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2",
    "DELETE /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2",
    "GET /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/n1",
    "GET /apis/storage.k8s.io/v1/csinodes",
    "GET /apis/storage.k8s.io/v1/csinodes/n2",
    "DELETE /apis/storage.k8s.io/v1/csinodes/n2",
    "GET /apis/storage.k8s.io/v1/volumeattachments",
    "GET /apis/storage.k8s.io/v1/volumeattachments/x",
    // Devices: its own slices.
    "GET /apis/resource.k8s.io/v1/resourceslices",
    "GET /apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dn2",
    "DELETE /apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dn2",
    "GET /apis/resource.k8s.io/v1/namespaces/a/resourceclaims",
    "GET /apis/resource.k8s.io/v1/namespaces/a/resourceclaims/x",
    // Resources that nodes have no access to.
    "GET /apis/rbac.authorization.k8s.io/v1/clusterroles",
    "GET /apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "DELETE /apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin",
    "GET /apis/apps/v1/deployments",
    "GET /apis/apps/v1/daemonsets",
    "GET /apis/batch/v1/jobs",
    "DELETE /api/v1/namespaces/a",
    "DELETE ~services",
    "DELETE ~events",
    "GET /apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "DELETE /apis/certificates.k8s.io/v1/certificatesigningrequests",
    "GET /metrics",
    "GET /debug/pprof/",
    // Impersonation.
    "GET /api/v1/secrets impersonate-user=admin",
    "GET /api/v1/secrets impersonate-user=system:node:n2 impersonate-group=system:nodes",
    "GET ~pods impersonate-user=system:serviceaccount:a:sa2",
];

/// Requests with a body.
fn writes() -> Vec<(&'static str, Value)> {
    let named = |name: &str| json!({"metadata": {"name": name}});
    let spec = |node: &str| json!({"nodeName": node, "containers": [{"name": "c", "image": "x"}]});
    let mirror = |node: &str, more: Value| {
        let mut spec = spec(node);
        spec.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        json!({"metadata": {"name": "m", "annotations": {"kubernetes.io/config.mirror": "x"}}, "spec": spec})
    };
    let token = |bound: Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}});
    let pod = |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
    let rule = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let rbac = "rbac.authorization.k8s.io";
    let grant = json!({"metadata": {"name": "x"}, "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "system:node:n1"}]});
    vec![
        ("POST ~secrets", named("x")),
        ("PUT ~secrets/s1", named("s1")),
        ("PATCH ~secrets/s1", json!({"data": {"a": "YQ=="}})),
        ("POST ~configmaps", named("x")),
        ("PATCH ~configmaps/c1", json!({"data": {"a": "b"}})),
        ("POST ~serviceaccounts", named("x")),
        ("PATCH ~serviceaccounts/sa1", json!({"metadata": {"labels": {"a": "b"}}})),
        ("POST ~serviceaccounts/sa2/token", token(pod("p2", "u"))),
        ("POST ~serviceaccounts/safree/token", token(Value::Null)),
        ("POST ~serviceaccounts/sa1/token", token(Value::Null)),
        ("POST ~serviceaccounts/sa1/token", token(pod("p1", ""))),
        ("POST ~serviceaccounts/sa1/token", token(pod("p1", "another"))),
        ("POST ~serviceaccounts/sa1/token", token(pod("p2", "u"))),
        (
            "POST ~serviceaccounts/sa1/token",
            token(json!({"apiVersion": "v1", "kind": "Secret", "name": "s1", "uid": "u"})),
        ),
        ("POST /api/v1/nodes", named("n3")),
        ("PATCH /api/v1/nodes/n2", json!({"metadata": {"labels": {"a": "b"}}})),
        ("PATCH /api/v1/nodes/n2/status", json!({"status": {"capacity": {"cpu": "9"}}})),
        ("PATCH /api/v1/nodes/n1", json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}})),
        ("PATCH /api/v1/nodes/n1", json!({"metadata": {"labels": {"node-restriction.kubernetes.io/a": "b"}}})),
        ("PATCH /api/v1/nodes/n1", json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}})),
        (
            "PATCH /api/v1/nodes/n1",
            json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "n2", "uid": "u"}]}}),
        ),
        ("POST ~pods", json!({"metadata": {"name": "x"}, "spec": spec("n1")})),
        ("POST ~pods", mirror("n2", json!({}))),
        ("POST ~pods", mirror("n1", json!({"serviceAccountName": "sa1"}))),
        ("POST ~pods", mirror("n1", json!({"volumes": [{"name": "s", "secret": {"secretName": "s2"}}]}))),
        ("POST ~pods", mirror("n1", json!({"volumes": [{"name": "s", "configMap": {"name": "c2"}}]}))),
        ("POST ~pods", mirror("n1", json!({"volumes": [{"name": "s", "persistentVolumeClaim": {"claimName": "v2"}}]}))),
        ("PATCH ~pods/p1", json!({"metadata": {"labels": {"a": "b"}}})),
        ("PATCH ~pods/p1/status", json!({"metadata": {"labels": {"a": "b"}}})),
        ("PATCH ~pods/p2/status", json!({"status": {"phase": "Failed"}})),
        ("POST ~pods/p2/eviction", json!({"metadata": {"name": "p2"}})),
        ("POST ~pods/p1/binding", json!({"metadata": {"name": "p1"}, "target": {"kind": "Node", "name": "n1"}})),
        ("PATCH ~pods/p1/ephemeralcontainers", json!({"spec": {"ephemeralContainers": []}})),
        ("PATCH ~pods/p1/resize", json!({"spec": {}})),
        ("PATCH ~persistentvolumeclaims/v1", json!({"metadata": {"labels": {"a": "b"}}})),
        ("PATCH ~persistentvolumeclaims/v2/status", json!({"status": {"phase": "Lost"}})),
        ("POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", named("n3")),
        (
            "PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n2",
            json!({"spec": {"holderIdentity": "n1"}}),
        ),
        ("POST /apis/coordination.k8s.io/v1/namespaces/kube-system/leases", named("n1")),
        ("POST /apis/storage.k8s.io/v1/csinodes", json!({"metadata": {"name": "n3"}, "spec": {"drivers": []}})),
        ("PATCH /apis/storage.k8s.io/v1/csinodes/n2", json!({"metadata": {"labels": {"a": "b"}}})),
        ("POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings", grant),
        ("POST /apis/rbac.authorization.k8s.io/v1/clusterroles", json!({"metadata": {"name": "x"}, "rules": rule})),
        ("PATCH /apis/rbac.authorization.k8s.io/v1/clusterroles/view", json!({"rules": rule})),
        ("POST /apis/apps/v1/namespaces/a/deployments", named("x")),
        ("POST /api/v1/namespaces", named("x")),
        ("POST ~services", named("x")),
        ("PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/x/approval", json!({"status": {}})),
        ("POST /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", named("x")),
        ("POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", named("x")),
        ("POST /apis/apiregistration.k8s.io/v1/apiservices", named("x")),
    ]
}

#[tokio::test]
async fn a_node_must_not_do_a_hundred_things() {
    let api = world().await;
    let rows: Vec<(&str, Value)> = PLAIN.iter().map(|row| (*row, Value::Null)).chain(writes()).collect();
    assert!(rows.len() >= 100, "{}", rows.len());
    let mut let_in = Vec::new();
    for (row, body) in &rows {
        let code = attempt(&api, row, body).await;
        if code != 403 {
            let_in.push(format!("{row}: {code}"));
        }
    }
    assert!(let_in.is_empty(), "not refused:\n{}", let_in.join("\n"));
}

#[tokio::test]
async fn a_node_may_do_what_it_needs() {
    let api = world().await;
    let lease = json!({"spec": {"holderIdentity": "n1"}});
    for (row, body, code) in [
        ("GET ~secrets/s1", Value::Null, 200),
        ("GET ~secrets?fieldSelector=metadata.name%3Ds1", Value::Null, 200),
        ("GET ~configmaps/c1", Value::Null, 200),
        ("GET ~persistentvolumeclaims/v1", Value::Null, 200),
        ("GET ~pods/p1", Value::Null, 200),
        ("GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1", Value::Null, 200),
        ("GET /api/v1/nodes/n1", Value::Null, 200),
        ("GET /api/v1/services", Value::Null, 200),
        ("PATCH /api/v1/nodes/n1/status", json!({"status": {"capacity": {"cpu": "4"}}}), 200),
        ("PATCH ~pods/p1/status", json!({"status": {"phase": "Running"}}), 200),
        ("PATCH /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1", lease, 200),
        ("POST ~events", json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "namespace": "a"}}), 201),
    ] {
        assert_eq!(attempt(&api, row, &body).await, code, "{row}");
    }
}
