//! All controllers together, under their own identities, on a paused clock: what one leaves to another must be done by
//! that one. Their rules of RBAC are proven here too, since the API server asks them.
use std::sync::Arc;

use kelson_controllers::{Authorities, Config, Controllers, Running};
use kelson_simulation::Api;
use serde_json::{Value, json};

const DEPLOYMENTS: &str = "apps/v1/deployments";
const SETS: &str = "apps/v1/replicasets";
const PODS: &str = "v1/pods";

async fn cluster() -> (Api, Running) {
    let api = Api::start().await;
    let authorities = Authorities { root_ca: "PEM".into(), ..Authorities::default() }.fixed();
    let config = Config { cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()], authorities, ..Config::default() };
    let factory = api.clone();
    let tasks = kelson_tasks::Tasks::root("controllers");
    let controllers =
        Controllers::start(config, Box::new(move |user| factory.client_as(user)), Arc::new(api.clock), tasks);
    controllers.synced().await;
    api.settle().await;
    (api, controllers)
}

fn deployment(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "example.com/c:1"}]}}}})
}

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]}})
}

#[tokio::test(start_paused = true)]
async fn a_deployment_lives_and_dies() {
    let (api, _controllers) = cluster().await;
    assert!(api.get("v1/serviceaccounts", "default", "default").await.is_some());
    assert!(api.get("v1/configmaps", "default", "kube-root-ca.crt").await.is_some());
    api.create("v1/nodes", json!({"metadata": {"name": "node-1"}})).await;
    api.create(DEPLOYMENTS, deployment("web")).await;
    api.create("v1/services", service("web")).await;
    api.run_pods().await;
    let d = api.get(DEPLOYMENTS, "default", "web").await.unwrap();
    assert_eq!(d["status"]["availableReplicas"], 3);
    assert_eq!(d["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    let generation = d["metadata"]["generation"].clone();

    let restart = json!({"kubectl.kubernetes.io/restartedAt": "now"});
    api.change(DEPLOYMENTS, "default", "web", |d| d["spec"]["template"]["metadata"]["annotations"] = restart.clone())
        .await;
    api.run_pods().await;
    let d = api.get(DEPLOYMENTS, "default", "web").await.unwrap();
    let numbers = ["updatedReplicas", "replicas", "availableReplicas"].map(|key| d["status"][key].as_i64());
    assert_eq!(numbers, [Some(3); 3]);
    assert!(d["status"]["conditions"].as_array().unwrap().iter().any(|c| c["reason"] == "NewReplicaSetAvailable"));
    assert_eq!(d["status"]["observedGeneration"], d["metadata"]["generation"]);
    assert_ne!(d["metadata"]["generation"], generation);
    assert_eq!(api.list(SETS).await.len(), 2, "the old set is kept for undo");

    api.delete(DEPLOYMENTS, "default", "web", json!({"propagationPolicy": "Foreground"})).await;
    api.run_pods().await;
    assert!(api.get(DEPLOYMENTS, "default", "web").await.is_none());
    assert!(api.list(SETS).await.is_empty() && api.list(PODS).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn orphans_stay_and_background_goes() {
    let (api, _controllers) = cluster().await;
    api.create(DEPLOYMENTS, deployment("kept")).await;
    api.settle().await;
    assert_eq!(api.list(PODS).await.len(), 3);
    api.delete(DEPLOYMENTS, "default", "kept", json!({"propagationPolicy": "Orphan"})).await;
    api.settle().await;
    assert!(api.get(DEPLOYMENTS, "default", "kept").await.is_none());
    let sets = api.list(SETS).await;
    assert_eq!((sets.len(), sets[0]["metadata"]["ownerReferences"].is_null()), (1, true));
    let set = sets[0]["metadata"]["name"].as_str().unwrap();
    api.delete(SETS, "default", set, json!({"propagationPolicy": "Background"})).await;
    api.settle().await;
    assert!(api.list(PODS).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn namespaces_nodes_and_endpoints() {
    let (api, _controllers) = cluster().await;
    api.create("v1/namespaces", json!({"metadata": {"name": "short"}})).await;
    api.create("v1/configmaps", json!({"metadata": {"name": "m", "namespace": "short"}, "data": {"a": "b"}})).await;
    api.settle().await;
    assert!(api.get("v1/serviceaccounts", "short", "default").await.is_some());
    api.delete("v1/namespaces", "", "short", json!({})).await;
    api.until("the namespace is gone", async |api| api.get("v1/namespaces", "", "short").await.is_none().then_some(()))
        .await;

    let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    api.create("v1/nodes", json!({"metadata": {"name": "node-1"}})).await;
    api.patch("v1/nodes", "", "node-1", "status", json!({"status": {"conditions": ready}})).await;
    api.settle().await;
    let node = api.get("v1/nodes", "", "node-1").await.unwrap();
    assert_eq!(node["spec"]["podCIDR"], "10.42.0.0/24");
    assert!(node["spec"]["taints"].as_array().is_none_or(Vec::is_empty), "a ready node has no taint");

    api.create("v1/services", service("web")).await;
    let spec = json!({"nodeName": "node-1", "containers": [{"name": "c", "image": "example.com/c:1"}]});
    let meta = json!({"name": "p", "namespace": "default", "labels": {"app": "web"}});
    api.create(PODS, json!({"metadata": meta, "spec": spec})).await;
    api.run_pods().await;
    let slices = api.list("discovery.k8s.io/v1/endpointslices").await;
    let mine: Vec<_> =
        slices.iter().filter(|s| s["metadata"]["labels"]["kubernetes.io/service-name"] == "web").collect();
    assert_eq!((mine.len(), &mine[0]["endpoints"][0]["conditions"]["ready"]), (1, &json!(true)));
    let legacy = api.get("v1/endpoints", "default", "web").await.unwrap();
    assert!(legacy["subsets"][0]["addresses"][0]["ip"].is_string());
}
