//! The three ways of deleting an owner, against the API on a paused clock.
use kelson_client::{DeleteOptions, PropagationPolicy};
use serde_json::{Value, json};

use crate::Config;
use crate::testing::run;
use crate::views::DeploymentView;
use kelson_simulation::Api;

fn owned(name: &str, kind: &str, owner: &Value, owner_kind: &str) -> Value {
    let mut object = json!({"kind": kind, "metadata": {"name": name, "namespace": "n", "ownerReferences": [{
        "apiVersion": "apps/v1", "kind": owner_kind, "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}]}});
    if kind == "ReplicaSet" {
        object["spec"] = deployment(name)["spec"].clone();
    }
    object
}

fn deployment(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "c"}]}}}})
}

/// A deployment `d`, its replica set `r`, and that one's config map `c` (which goes at once, unlike a pod).
async fn family(api: &Api) {
    let d = api.create("apps/v1/deployments", deployment("d")).await;
    let r = api.create("apps/v1/replicasets", owned("r", "ReplicaSet", &d, "Deployment")).await;
    api.create("v1/configmaps", owned("c", "ConfigMap", &r, "ReplicaSet")).await;
    api.create("v1/configmaps", json!({"metadata": {"name": "other", "namespace": "n"}})).await;
}
async fn delete(api: &Api, policy: PropagationPolicy) {
    let options = DeleteOptions::default().with_propagation(policy);
    api.client().delete::<DeploymentView>("n", "d", &options).await.unwrap();
}
async fn there(api: &Api) -> Vec<&'static str> {
    let all = [
        ("apps/v1/deployments", "d"),
        ("apps/v1/replicasets", "r"),
        ("v1/configmaps", "c"),
        ("v1/configmaps", "other"),
    ];
    let mut there = Vec::new();
    for (resource, name) in all {
        if api.get(resource, "n", name).await.is_some() {
            there.push(name);
        }
    }
    there
}
async fn started() -> (Api, crate::Running) {
    let api = Api::start().await;
    api.namespace("n").await;
    let running = run(&api, &["garbage-collector-controller"], Config::default()).await;
    api.settle().await;
    (api, running)
}

#[tokio::test(start_paused = true)]
async fn background() {
    let (api, _running) = started().await;
    family(&api).await;
    api.settle().await;
    assert_eq!(there(&api).await, ["d", "r", "c", "other"], "owners that exist keep what they own");
    delete(&api, PropagationPolicy::Background).await;
    api.settle().await;
    assert_eq!(there(&api).await, ["other"]);
}

#[tokio::test(start_paused = true)]
async fn foreground_waits_for_dependents() {
    let (api, _running) = started().await;
    family(&api).await;
    let hold = |v: &mut Value| v["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.change("v1/configmaps", "n", "c", hold).await;
    api.settle().await;
    delete(&api, PropagationPolicy::Foreground).await;
    api.settle().await;
    assert_eq!(there(&api).await, ["d", "r", "c", "other"], "the last dependent is held");
    for (resource, name) in [("apps/v1/deployments", "d"), ("apps/v1/replicasets", "r"), ("v1/configmaps", "c")] {
        assert!(!api.get(resource, "n", name).await.unwrap()["metadata"]["deletionTimestamp"].is_null(), "{name}");
    }
    api.change("v1/configmaps", "n", "c", |v| v["metadata"]["finalizers"] = json!([])).await;
    api.settle().await;
    assert_eq!(there(&api).await, ["other"]);
}

#[tokio::test(start_paused = true)]
async fn orphan_keeps_dependents() {
    let (api, _running) = started().await;
    family(&api).await;
    api.settle().await;
    delete(&api, PropagationPolicy::Orphan).await;
    api.settle().await;
    assert_eq!(there(&api).await, ["r", "c", "other"]);
    assert_eq!(api.get("apps/v1/replicasets", "n", "r").await.unwrap()["metadata"]["ownerReferences"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn absent_and_impossible_owners() {
    let (api, _running) = started().await;
    let ghost = json!({"metadata": {"name": "d", "uid": "00000000-0000-4000-8000-00000000dead"}});
    api.create("apps/v1/replicasets", owned("r", "ReplicaSet", &ghost, "Deployment")).await;
    let mut node = owned("node", "Node", &ghost, "Deployment");
    node["metadata"]["namespace"] = Value::Null;
    node["metadata"].as_object_mut().unwrap().remove("namespace");
    api.create("v1/nodes", node).await;
    api.settle().await;
    assert!(api.get("apps/v1/replicasets", "n", "r").await.is_none(), "its owner never was");
    assert!(api.get("v1/nodes", "", "node").await.is_some(), "a cluster-scoped object with a namespaced owner stays");
    assert!(
        api.events()
            .await
            .iter()
            .any(|e| e.starts_with("OwnerRefInvalidNamespace ownerRef [apps/v1/Deployment, name: d"))
    );
}

#[tokio::test(start_paused = true)]
async fn one_of_two_owners_is_enough() {
    let (api, _running) = started().await;
    family(&api).await;
    let other = api.create("apps/v1/deployments", deployment("e")).await;
    api.change("apps/v1/replicasets", "n", "r", |v| {
        let owners = v["metadata"]["ownerReferences"].as_array_mut().unwrap();
        owners
            .push(json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "e", "uid": other["metadata"]["uid"]}));
    })
    .await;
    api.settle().await;
    delete(&api, PropagationPolicy::Background).await;
    api.settle().await;
    assert_eq!(there(&api).await, ["r", "c", "other"]);
    let owners = api.get("apps/v1/replicasets", "n", "r").await.unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!((owners.as_array().unwrap().len(), &owners[0]["name"]), (1, &json!("e")));
}
