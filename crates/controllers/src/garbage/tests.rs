//! The three ways of deleting an owner, against the API on a paused clock.
use kelson_client::{DeleteOptions, PropagationPolicy};
use serde_json::{Value, json};

use crate::Config;
use crate::testing::FakeApi;
use crate::views::DeploymentView;

fn owned(name: &str, kind: &str, owner: &Value, owner_kind: &str) -> Value {
    json!({"kind": kind, "metadata": {"name": name, "namespace": "n", "ownerReferences": [{
        "apiVersion": "apps/v1", "kind": owner_kind, "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}]}})
}

/// A deployment `d`, its replica set `r`, and that one's config map `c` (which goes at once, unlike a pod).
fn family(api: &FakeApi) {
    let d = api.create("apps/v1/deployments", json!({"metadata": {"name": "d", "namespace": "n"}}));
    let r = api.create("apps/v1/replicasets", owned("r", "ReplicaSet", &d, "Deployment"));
    api.create("v1/configmaps", owned("c", "ConfigMap", &r, "ReplicaSet"));
    api.create("v1/configmaps", json!({"metadata": {"name": "other", "namespace": "n"}}));
}
async fn delete(api: &FakeApi, policy: PropagationPolicy) {
    let options = DeleteOptions::default().with_propagation(policy);
    api.client().delete::<DeploymentView>("n", "d", &options).await.unwrap();
}
fn there(api: &FakeApi) -> Vec<&'static str> {
    let all = [
        ("apps/v1/deployments", "d"),
        ("apps/v1/replicasets", "r"),
        ("v1/configmaps", "c"),
        ("v1/configmaps", "other"),
    ];
    all.iter().filter(|(r, n)| api.get(r, "n", n).is_some()).map(|(_, n)| *n).collect()
}
async fn started() -> (FakeApi, crate::Running) {
    let api = FakeApi::new();
    let running = api.run(&["garbage-collector-controller"], Config::default());
    api.settle().await;
    (api, running)
}

#[tokio::test(start_paused = true)]
async fn background() {
    let (api, _running) = started().await;
    family(&api);
    api.settle().await;
    assert_eq!(there(&api), ["d", "r", "c", "other"], "owners that exist keep what they own");
    delete(&api, PropagationPolicy::Background).await;
    api.settle().await;
    assert_eq!(there(&api), ["other"]);
}

#[tokio::test(start_paused = true)]
async fn foreground_waits_for_dependents() {
    let (api, _running) = started().await;
    family(&api);
    let hold = |v: &mut Value| v["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.change("v1/configmaps", "n", "c", hold);
    api.settle().await;
    delete(&api, PropagationPolicy::Foreground).await;
    api.settle().await;
    assert_eq!(there(&api), ["d", "r", "c", "other"], "the last dependent is held");
    for (resource, name) in [("apps/v1/deployments", "d"), ("apps/v1/replicasets", "r"), ("v1/configmaps", "c")] {
        assert!(!api.get(resource, "n", name).unwrap()["metadata"]["deletionTimestamp"].is_null(), "{name}");
    }
    api.change("v1/configmaps", "n", "c", |v| v["metadata"]["finalizers"] = json!([]));
    api.settle().await;
    assert_eq!(there(&api), ["other"]);
}

#[tokio::test(start_paused = true)]
async fn orphan_keeps_dependents() {
    let (api, _running) = started().await;
    family(&api);
    api.settle().await;
    delete(&api, PropagationPolicy::Orphan).await;
    api.settle().await;
    assert_eq!(there(&api), ["r", "c", "other"]);
    assert_eq!(api.get("apps/v1/replicasets", "n", "r").unwrap()["metadata"]["ownerReferences"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn absent_and_impossible_owners() {
    let (api, _running) = started().await;
    let ghost = json!({"metadata": {"name": "d", "uid": "00000000-0000-4000-8000-00000000dead"}});
    api.create("apps/v1/replicasets", owned("r", "ReplicaSet", &ghost, "Deployment"));
    let mut node = owned("node", "Node", &ghost, "Deployment");
    node["metadata"]["namespace"] = Value::Null;
    node["metadata"].as_object_mut().unwrap().remove("namespace");
    api.create("v1/nodes", node);
    api.settle().await;
    assert!(api.get("apps/v1/replicasets", "n", "r").is_none(), "its owner never was");
    assert!(api.get("v1/nodes", "", "node").is_some(), "a cluster-scoped object with a namespaced owner stays");
    assert!(
        api.events().iter().any(|e| e.starts_with("OwnerRefInvalidNamespace ownerRef [apps/v1/Deployment, name: d"))
    );
}

#[tokio::test(start_paused = true)]
async fn one_of_two_owners_is_enough() {
    let (api, _running) = started().await;
    family(&api);
    let other = api.create("apps/v1/deployments", json!({"metadata": {"name": "e", "namespace": "n"}}));
    api.change("apps/v1/replicasets", "n", "r", |v| {
        let owners = v["metadata"]["ownerReferences"].as_array_mut().unwrap();
        owners
            .push(json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "e", "uid": other["metadata"]["uid"]}));
    });
    api.settle().await;
    delete(&api, PropagationPolicy::Background).await;
    api.settle().await;
    assert_eq!(there(&api), ["r", "c", "other"]);
    let owners = api.get("apps/v1/replicasets", "n", "r").unwrap()["metadata"]["ownerReferences"].clone();
    assert_eq!((owners.as_array().unwrap().len(), &owners[0]["name"]), (1, &json!("e")));
}
