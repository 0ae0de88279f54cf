//! What a node may access, as tables over a small cluster.
use super::*;
use crate::{Change, UserInfo, user};
use kelson_meta::FieldSelector;
use serde_json::{Value, json};

fn put(graph: &NodeGraph, resource: NodeResource, namespace: &str, name: &str, object: &Value) {
    graph.apply(resource, namespace, name, Change::Put(&serde_json::to_vec(object).unwrap()));
}

fn pod(node: Option<&str>) -> Value {
    json!({"metadata": {"name": "p", "namespace": "a", "uid": "1"}, "spec": {
        "nodeName": node, "serviceAccountName": "sa", "imagePullSecrets": [{"name": "pull"}],
        "initContainers": [{"env": [{"name": "x", "valueFrom": {"secretKeyRef": {"name": "init", "key": "k"}}}]}],
        "containers": [{"envFrom": [{"configMapRef": {"name": "cm1"}}, {"secretRef": {"name": "s1"}}],
            "env": [{"name": "y", "valueFrom": {"configMapKeyRef": {"name": "cm2", "key": "k"}}}]}],
        "volumes": [{"name": "v1", "secret": {"secretName": "s2"}}, {"name": "v2", "configMap": {"name": "cm3"}},
            {"name": "v3", "projected": {"sources": [{"secret": {"name": "s3"}}, {"configMap": {"name": "cm4"}}]}},
            {"name": "v4", "persistentVolumeClaim": {"claimName": "pvc"}}, {"name": "v5", "ephemeral": {}},
            {"name": "v6", "csi": {"nodePublishSecretRef": {"name": "s4"}}},
            {"name": "v7", "scaleIO": {"secretRef": {"name": "s5"}}}],
        "resourceClaims": [{"name": "c1", "resourceClaimName": "rc1"}, {"name": "c2", "resourceClaimTemplateName": "t"}]},
        "status": {"resourceClaimStatuses": [{"name": "c2", "resourceClaimName": "rc2"}]}})
}

fn cluster() -> NodeAuthorizer {
    let graph = NodeGraph::new();
    put(&graph, NodeResource::Pods, "a", "p", &pod(Some("n1")));
    put(
        &graph,
        NodeResource::PersistentVolumes,
        "",
        "pv",
        &json!({"spec": {
        "claimRef": {"namespace": "a", "name": "pvc"},
        "csi": {"nodeStageSecretRef": {"name": "stage", "namespace": "vault"},
            "controllerPublishSecretRef": {"name": "ctl", "namespace": "vault"}}}}),
    );
    put(&graph, NodeResource::VolumeAttachments, "", "va", &json!({"spec": {"nodeName": "n1"}}));
    put(&graph, NodeResource::ResourceSlices, "", "slice", &json!({"spec": {"nodeName": "n1"}}));
    put(&graph, NodeResource::PodCertificateRequests, "a", "pcr", &json!({"spec": {"nodeName": "n1"}}));
    NodeAuthorizer::new(Arc::new(graph))
}

fn may(authorizer: &NodeAuthorizer, node: &str, request: &str) -> bool {
    decide(authorizer, node, request).is_allow()
}

/// Decides `verb group/resource[:subresource] namespace name [field=value]`, with `-` for empty.
fn decide(authorizer: &NodeAuthorizer, node: &str, request: &str) -> Decision {
    let w: Vec<&str> = request.split(' ').map(|w| if w == "-" { "" } else { w }).collect();
    let (group, resource) = w[1].split_once('/').unwrap();
    let (resource, subresource) = resource.split_once(':').unwrap_or((resource, ""));
    let selector = w.get(4).map(|s| FieldSelector::parse(s).unwrap());
    let user = UserInfo::new(format!("system:node:{node}"), [user::NODES]);
    let a = Attributes::resource(&user, w[0], group, resource, w[2], w[3]).with_subresource(subresource);
    authorizer.authorize(&Attributes { field_selector: selector.as_ref(), ..a })
}

#[test]
fn reachable_objects() {
    let a = cluster();
    for name in ["pull", "init", "s1", "s2", "s3", "s4", "s5"] {
        assert!(may(&a, "n1", &format!("get /secrets a {name}")), "{name}");
        assert!(may(&a, "n1", &format!("watch /secrets a {name}")), "{name}");
        assert!(!may(&a, "n2", &format!("get /secrets a {name}")), "{name}");
        assert!(!may(&a, "n1", &format!("get /secrets b {name}")), "{name}");
        assert!(!may(&a, "n1", &format!("delete /secrets a {name}")), "{name}");
    }
    for name in ["cm1", "cm2", "cm3", "cm4"] {
        assert!(may(&a, "n1", &format!("get /configmaps a {name}")), "{name}");
    }
    for (request, want) in [
        ("list /secrets a -", false),
        ("get /secrets vault stage", true),
        ("get /secrets vault ctl", false),
        ("get /persistentvolumeclaims a pvc", true),
        ("get /persistentvolumeclaims a p-v5", true),
        ("list /persistentvolumeclaims a pvc", false),
        ("patch /persistentvolumeclaims:status a pvc", true),
        ("get /persistentvolumes - pv", true),
        ("get storage.k8s.io/volumeattachments - va", true),
        ("get resource.k8s.io/resourceclaims a rc1", true),
        ("get resource.k8s.io/resourceclaims a rc2", true),
        ("get resource.k8s.io/resourceclaims a t", false),
        ("create /serviceaccounts:token a sa", true),
        ("create /serviceaccounts:token a default", false),
        ("get /serviceaccounts a sa", true),
        ("get certificates.k8s.io/podcertificaterequests a pcr", true),
        ("delete certificates.k8s.io/podcertificaterequests a pcr", false),
        ("delete resource.k8s.io/resourceslices - slice", true),
        ("list resource.k8s.io/resourceslices - - spec.nodeName=n1", true),
        ("list resource.k8s.io/resourceslices - - spec.nodeName=n2", false),
    ] {
        assert_eq!(may(&a, "n1", request), want, "{request}");
        assert!(!may(&a, "n2", request) || request.contains("n2"), "{request}");
    }
    assert_eq!(
        decide(&a, "n2", "get /secrets a s1").reason(),
        "no relationship found between node 'n2' and this object"
    );
}

#[test]
fn own_objects() {
    let a = cluster();
    for (request, want) in [
        ("get /nodes - n1", true),
        ("get /nodes - n2", false),
        ("list /nodes - -", false),
        ("create /nodes - -", true),
        ("patch /nodes:status - n1", true),
        ("delete /nodes - n1", false),
        ("list /pods - - spec.nodeName=n1", true),
        ("list /pods - - spec.nodeName=n2", false),
        ("list /pods - - spec.nodeName!=n1", false),
        ("watch /pods a p", true),
        ("get /pods a p", true),
        ("get /pods a other", false),
        ("create /pods a -", true),
        ("patch /pods:status a p", true),
        ("create /pods:eviction a p", true),
        ("create /pods:exec a p", false),
        ("update coordination.k8s.io/leases kube-node-lease n1", true),
        ("update coordination.k8s.io/leases kube-node-lease n2", false),
        ("update coordination.k8s.io/leases kube-system n1", false),
        ("list coordination.k8s.io/leases kube-node-lease -", false),
        ("create coordination.k8s.io/leases kube-node-lease -", true),
        ("get storage.k8s.io/csinodes - n1", true),
        ("get storage.k8s.io/csinodes - n2", false),
        ("list /services - -", true),
        ("create /events a -", true),
        ("create certificates.k8s.io/certificatesigningrequests - -", true),
        ("create authentication.k8s.io/tokenreviews - -", true),
        ("list apps/deployments - -", false),
        ("get /namespaces - a", false),
    ] {
        assert_eq!(may(&a, "n1", request), want, "{request}");
    }
    let stranger = UserInfo::new("system:node:n1", [user::AUTHENTICATED]);
    let get = Attributes::resource(&stranger, "get", "", "nodes", "", "n1");
    assert_eq!(a.authorize(&get), Decision::NoOpinion(String::new()));
    assert_eq!(decide(&a, "", "get /nodes - n1").reason(), "unknown node for user \"system:node:\"");
}

#[test]
fn changes() {
    let a = cluster();
    let graph = a.graph().clone();
    // Two pods share a secret: it stays accessible until the last is gone.
    let mut second = pod(Some("n1"));
    second["metadata"]["uid"] = json!("2");
    put(&graph, NodeResource::Pods, "a", "q", &second);
    graph.apply(NodeResource::Pods, "a", "p", Change::Delete);
    assert!(may(&a, "n1", "get /secrets a s1") && !may(&a, "n1", "get /pods a p"));
    graph.apply(NodeResource::Pods, "a", "q", Change::Delete);
    assert!(!may(&a, "n1", "get /secrets a s1") && !may(&a, "n1", "get /persistentvolumes - pv"));
    // Unbound, then bound, then recreated on another node with the same name.
    put(&graph, NodeResource::Pods, "a", "p", &pod(None));
    assert!(!may(&a, "n1", "get /pods a p"));
    put(&graph, NodeResource::Pods, "a", "p", &pod(Some("n1")));
    assert!(may(&a, "n1", "get /pods a p"));
    put(&graph, NodeResource::Pods, "a", "p", &pod(Some("n2")));
    assert!(!may(&a, "n1", "get /secrets a s1") && may(&a, "n2", "get /secrets a s1"));
    // An ephemeral container adds a new reference.
    let mut debugged = pod(Some("n2"));
    debugged["spec"]["ephemeralContainers"] = json!([{"envFrom": [{"secretRef": {"name": "dbg"}}]}]);
    put(&graph, NodeResource::Pods, "a", "p", &debugged);
    assert!(may(&a, "n2", "get /secrets a dbg"));
    // A mirror pod grants nothing but itself.
    let mut mirror = pod(Some("n3"));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    put(&graph, NodeResource::Pods, "a", "m", &mirror);
    assert!(may(&a, "n3", "get /pods a m") && !may(&a, "n3", "get /secrets a s1"));
    graph.apply(NodeResource::PersistentVolumes, "", "pv", Change::Delete);
    assert!(!may(&a, "n2", "get /secrets vault stage"));
    assert!(graph.reaches("n1", Kind::VolumeAttachment, "", "va"));
    put(&graph, NodeResource::VolumeAttachments, "", "va", &json!({"spec": {"nodeName": "n9"}}));
    assert!(!graph.reaches("n1", Kind::VolumeAttachment, "", "va"));
}
