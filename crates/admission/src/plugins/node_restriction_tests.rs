//! A table of writes that a node may and may not make.
use super::*;
use crate::testing::{Ask, dependencies, object};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kelson_pki::{Key, create_request};
use serde_json::json;

fn world() -> Dependencies {
    dependencies(&[
        (
            "pods/a/mine",
            json!({"metadata": {"name": "mine", "uid": "1"}, "spec": {"nodeName": "n1", "volumes": [
            {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"serviceAccountToken": {"audience": "vault"}}]}},
            {"name": "c", "csi": {"driver": "d.io"}}]}}),
        ),
        ("pods/a/theirs", json!({"metadata": {"uid": "2"}, "spec": {"nodeName": "n2"}})),
        ("nodes//n1", json!({"metadata": {"uid": "n1-uid"}})),
        ("csidrivers//d.io", json!({"spec": {"tokenRequests": [{"audience": "csi"}]}})),
    ])
}

async fn ask(ask: Ask<'_>) -> Result<Value, String> {
    object(NodeRestriction::new(&world()), ask.by("system:node:n1", "system:nodes")).await
}

fn mirror(change: impl Fn(&mut Value)) -> Ask<'static> {
    let mut pod = json!({"metadata": {"name": "m", "annotations": {MIRROR: "x"}, "ownerReferences": [
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1-uid", "controller": true}]}, "spec": {"nodeName": "n1"}});
    change(&mut pod);
    Ask::pod(pod)
}

#[tokio::test]
async fn mirror_pods() {
    assert!(ask(mirror(|_| {})).await.is_ok());
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 12] = [
        // Devices that are reserved for other pods (CVE-2025-4563).
        (
            |p| p["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": "theirs"}]),
            "reference resourceclaims",
        ),
        (
            |p| p["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "theirs"}}]),
            "reference persistentvolumeclaims",
        ),
        (
            |p| p["metadata"]["annotations"] = json!({}),
            "does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create mirror pods",
        ),
        (|p| p["spec"]["nodeName"] = json!("n2"), "node \"n1\" can only create pods with spec.nodeName set to itself"),
        (|p| p["metadata"]["ownerReferences"] = json!([]), "with an owner reference set to itself"),
        (|p| p["metadata"]["ownerReferences"][0]["name"] = json!("n2"), "with an owner reference set to itself"),
        (|p| p["metadata"]["ownerReferences"][0]["controller"] = json!(false), "a controller owner reference"),
        (
            |p| p["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = json!(true),
            "must not set blockOwnerDeletion",
        ),
        (|p| p["metadata"]["ownerReferences"][0]["uid"] = json!("x"), "node n1 UID mismatch: expected x got n1-uid"),
        (|p| p["spec"]["serviceAccountName"] = json!("x"), "can not create pods that reference serviceaccounts"),
        (|p| p["spec"]["containers"] = json!([{"envFrom": [{"configMapRef": {"name": "x"}}]}]), "reference configmaps"),
        (
            |p| p["spec"]["ephemeralContainers"] = json!([{"env": [{"valueFrom": {"secretKeyRef": {"name": "x"}}}]}]),
            "reference secrets",
        ),
    ];
    for (change, text) in cases {
        let e = ask(mirror(change)).await.unwrap_err();
        assert!(e.contains(text), "{e}");
    }
}

#[tokio::test]
async fn pods_of_its_own() {
    let delete =
        |name: &'static str| Ask { operation: Operation::Delete, object: None, ..Ask::pod(json!({})).named("a", name) };
    assert!(ask(delete("mine")).await.is_ok());
    assert!(ask(delete("theirs")).await.unwrap_err().contains("can only delete pods"));
    assert_eq!(ask(delete("gone")).await.unwrap_err(), "pods \"gone\" not found");
    let status = |old: Value, new: Value| Ask::update("/pods/status", old, new);
    let pod = |node: &str, labels: Value| json!({"metadata": {"labels": labels}, "spec": {"nodeName": node}});
    assert!(ask(status(pod("n1", json!({"a": "b"})), pod("n1", json!({"a": "b"})))).await.is_ok());
    assert!(ask(status(pod("n2", json!({})), pod("n2", json!({})))).await.is_err());
    assert!(
        ask(status(pod("n1", json!({})), pod("n1", json!({"a": "b"}))))
            .await
            .unwrap_err()
            .contains("cannot update labels")
    );
    let eviction =
        |name: &'static str| Ask::create("/pods/eviction", json!({"metadata": {"name": name}})).named("a", name);
    assert!(ask(eviction("mine")).await.is_ok() && ask(eviction("theirs")).await.is_err());
    assert!(
        ask(Ask::create("/pods/exec", json!({})))
            .await
            .unwrap_err()
            .contains("only 'status' and 'eviction' are allowed")
    );
    let jane = object(NodeRestriction::new(&world()), Ask::pod(json!({}))).await;
    assert!(jane.is_ok(), "others are not restricted");
}

#[tokio::test]
async fn nodes() {
    let node = |labels: Value| json!({"metadata": {"name": "n1", "labels": labels}});
    assert!(
        ask(Ask::create(
            "/nodes",
            node(json!({"kubernetes.io/os": "linux", "x.kubelet.kubernetes.io/y": "1", "own": "1"}))
        ))
        .await
        .is_ok()
    );
    for label in [
        "node-restriction.kubernetes.io/x",
        "a.node-restriction.kubernetes.io/x",
        "node-role.kubernetes.io/master",
        "x.k8s.io/y",
    ] {
        let e = ask(Ask::create("/nodes", node(json!({label: "1"})))).await.unwrap_err();
        assert!(e.ends_with(&format!("node \"n1\" is not allowed to set the following labels: {label}")), "{e}");
        let e =
            ask(Ask::update("/nodes", node(json!({label: "1"})), node(json!({}))).named("", "n1")).await.unwrap_err();
        assert!(e.ends_with(&format!("is not allowed to modify labels: {label}")), "{e}");
    }
    let update = |path: &str, v: Value| {
        let mut new = node(json!({}));
        kelson_meta::tree::path::set(&mut new, &path.split('.').collect::<Vec<_>>(), v);
        Ask::update("/nodes/status", node(json!({})), new).named("", "n1")
    };
    assert!(ask(update("status.conditions", json!([{"type": "Ready"}]))).await.is_ok());
    assert!(ask(update("spec.taints", json!([{"key": "x"}]))).await.unwrap_err().contains("modify taints"));
    assert!(
        ask(update("metadata.ownerReferences", json!([{"uid": "x"}])))
            .await
            .unwrap_err()
            .contains("modify ownerReferences")
    );
    let with_range =
        json!({"metadata": {"name": "n1"}, "spec": {"podCIDR": "10.42.9.0/24", "podCIDRs": ["10.42.9.0/24"]}});
    assert!(ask(Ask::create("/nodes", with_range)).await.unwrap_err().contains("not allowed to set its pod CIDRs"));
    let only_list = json!({"metadata": {"name": "n1"}, "spec": {"podCIDRs": ["10.42.9.0/24"]}});
    assert!(ask(Ask::create("/nodes", only_list)).await.unwrap_err().contains("not allowed to set its pod CIDRs"));
    let late = update("spec.podCIDRs", json!(["10.42.9.0/24"]));
    assert!(ask(late).await.unwrap_err().contains("not allowed to modify its pod CIDRs"));
    let other = Ask::create("/nodes", json!({"metadata": {"name": "n2"}}));
    assert!(ask(other).await.unwrap_err().contains("node \"n1\" is not allowed to modify node \"n2\""));
}

#[tokio::test]
async fn tokens_certificates_and_the_rest() {
    let token = |pod: &str, uid: &str, audiences: Value| {
        Ask::create(
            "/serviceaccounts/token",
            json!({"spec": {"audiences": audiences,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}}}),
        )
        .named("a", "default")
    };
    for audiences in [json!([]), json!(["vault"]), json!(["csi"])] {
        assert!(ask(token("mine", "1", audiences)).await.is_ok());
    }
    for (t, text) in [
        (token("theirs", "2", json!([])), "bound to a pod scheduled on a different node"),
        (token("mine", "9", json!([])), "does not match the UID in record"),
        (token("mine", "", json!([])), "without a uid"),
        (token("", "", json!([])), "not bound to a pod"),
        (
            token("mine", "1", json!(["other"])),
            "audience \"other\" not found in pod spec volume, system:node:n1 is not authorized",
        ),
        (token("mine", "1", json!(["a", "b"])), "node may only request 0 or 1 audiences"),
    ] {
        let e = ask(t).await.unwrap_err();
        assert!(e.contains(text), "{e}");
    }
    let csr = |cn: &str| {
        let pem = create_request(&Key::generate().unwrap(), cn, &["system:nodes".to_owned()], &[]).unwrap();
        Ask::create(
            "certificates.k8s.io/certificatesigningrequests",
            json!({"spec": {"signerName": KUBELET_SERVING, "request": STANDARD.encode(pem)}}),
        )
    };
    assert!(ask(csr("system:node:n1")).await.is_ok());
    assert!(
        ask(csr("system:node:n2")).await.unwrap_err().contains("can only create a node CSR with CN=system:node:n1")
    );
    let object_with = |gates: &str, ask: Ask<'static>| {
        let d = Dependencies { gates: crate::testing::gated(&[], gates).gates, ..world() };
        object(NodeRestriction::new(&d), ask.by("system:node:n1", "system:nodes"))
    };
    let insecure = "AllowInsecureKubeletCertificateSigningRequests=true";
    assert!(object_with(insecure, csr("system:node:n2")).await.is_ok());
    let audience = "ServiceAccountNodeAudienceRestriction=false";
    assert!(object_with(audience, token("mine", "1", json!(["other"]))).await.is_ok());
    let certificate = || Ask::create("certificates.k8s.io/podcertificaterequests", json!({"spec": {"nodeName": "n2"}}));
    for (gate, want) in [("true", "which is not the requesting node \"n1\""), ("false", "feature gate is disabled")] {
        let reported = object_with(&format!("PodCertificateRequest={gate}"), certificate()).await.unwrap_err();
        assert!(reported.ends_with(want), "{reported}");
    }
    let lease = |ns: &'static str, name: &str| {
        Ask::create("coordination.k8s.io/leases", json!({"metadata": {"name": name}})).named(ns, "")
    };
    assert!(ask(lease("kube-node-lease", "n1")).await.is_ok());
    assert!(ask(lease("kube-node-lease", "n2")).await.is_err() && ask(lease("a", "n1")).await.is_err());
    let slice = Ask::create("resource.k8s.io/resourceslices", json!({"spec": {"nodeName": "n2"}}));
    assert!(ask(slice).await.unwrap_err().contains("can only create ResourceSlice"));
    let claim = |phase: &str, size: &str| json!({"metadata": {"name": "x"}, "status": {"phase": phase, "capacity": {"storage": size}}});
    let status = |new: Value| Ask::update("/persistentvolumeclaims/status", claim("Bound", "1Gi"), new);
    assert!(ask(status(claim("Bound", "2Gi"))).await.is_ok());
    assert!(
        ask(status(claim("Lost", "1Gi")))
            .await
            .unwrap_err()
            .contains("fields other than status.quantity and status.conditions")
    );
    let nobody = Ask::pod(json!({})).by("system:node:", "system:nodes");
    assert!(object(NodeRestriction::new(&world()), nobody).await.unwrap_err().contains("could not determine node"));
}
