//! The three ways of deleting an owner, against the API on a paused clock.
use kelson_client::{DeleteOptions, PropagationPolicy};
use serde_json::{Value, json};

use crate::Config;
use crate::testing::{Barred, Gate, run, run_through};
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

/// A deployment `d`, its replica set `r`, and that one's config map `c`, which is deleted at once, unlike a pod.
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
            .any(|e| e.starts_with("OwnerRefInvalidNamespace ownerRef [apps/v1/Deployment, namespace: , name: d"))
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

const COLLECTOR: &str = "garbage-collector-controller";
const GHOST: &str = "00000000-0000-4000-8000-00000000dead";

/// An object of namespace `n` with this owner.
fn child(name: &str, owner: (&str, &str, &str, &str)) -> Value {
    let (api_version, kind, owner_name, uid) = owner;
    json!({"metadata": {"name": name, "namespace": "n", "ownerReferences": [
        {"apiVersion": api_version, "kind": kind, "name": owner_name, "uid": uid}]}})
}

/// Config maps of `n` that name an existing UID, rightly or wrongly, and whether they stay.
async fn references(api: &Api) -> Vec<(&'static str, bool)> {
    api.namespace("other").await;
    let uid = |o: &Value| o["metadata"]["uid"].as_str().unwrap().to_owned();
    let map = |namespace: &str| json!({"metadata": {"name": "p", "namespace": namespace}});
    let here = uid(&api.create("v1/configmaps", map("n")).await);
    let there = uid(&api.create("v1/configmaps", map("other")).await);
    let space = uid(&api.get("v1/namespaces", "", "n").await.unwrap());
    let rows = [
        ("right", true, ("v1", "ConfigMap", "p", &here)),
        ("of-the-cluster", true, ("v1", "Namespace", "n", &space)),
        ("other-version", true, ("v9", "ConfigMap", "p", &here)),
        ("other-namespace", false, ("v1", "ConfigMap", "p", &there)),
        ("kind-of-the-cluster", false, ("v1", "Node", "p", &here)),
        ("other-kind", false, ("v1", "Secret", "p", &here)),
        ("other-name", false, ("v1", "ConfigMap", "q", &here)),
        ("other-group", false, ("apps/v1", "Deployment", "p", &here)),
    ];
    for (name, _, (version, kind, owner, uid)) in rows {
        api.create("v1/configmaps", child(name, (version, kind, owner, uid))).await;
    }
    rows.iter().map(|(name, stays, _)| (*name, *stays)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_reference_is_treated_alike_before_and_after_a_restart() {
    for runs_before in [true, false] {
        let api = Api::start().await;
        api.namespace("n").await;
        let before = if runs_before { Some(run(&api, &[COLLECTOR], Config::default()).await) } else { None };
        api.settle().await;
        let rows = references(&api).await;
        let _running = match before {
            Some(running) => running,
            None => run(&api, &[COLLECTOR], Config::default()).await,
        };
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
        for (name, stays) in rows {
            let there = api.get("v1/configmaps", "n", name).await.is_some();
            assert_eq!(there, stays, "{name}, collector runs before: {runs_before}");
        }
        let uid = api.get("v1/configmaps", "other", "p").await.unwrap()["metadata"]["uid"].clone();
        let text = format!(
            "OwnerRefInvalidNamespace ownerRef [v1/ConfigMap, namespace: n, name: p, uid: {}] does not exist in \
             namespace \"n\"",
            uid.as_str().unwrap()
        );
        assert!(api.events().await.contains(&text), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_cannot_be_read_delays_no_other() {
    for how in [Barred::Fails, Barred::Hangs] {
        let (api, gate) = (Api::start().await, Gate::default());
        api.namespace("n").await;
        // Neither the kind's lists nor its objects, and an owner of that kind as well.
        gate.bar("/roles", how);
        let _running = run_through(&api, &[COLLECTOR], &gate);
        let role = "rbac.authorization.k8s.io/v1/roles";
        let owner = api.create(role, json!({"metadata": {"name": "owner", "namespace": "n"}})).await;
        let uid = owner["metadata"]["uid"].as_str().unwrap();
        for n in 0..50 {
            let of_the_kind = ("rbac.authorization.k8s.io/v1", "Role", "owner", uid);
            api.create("v1/configmaps", child(&format!("waits{n}"), of_the_kind)).await;
        }
        api.create("v1/configmaps", child("goes", ("v1", "Secret", "none", GHOST))).await;
        api.create(role, child("of-the-kind", ("v1", "Secret", "none", GHOST))).await;
        let gone = async |api: &Api| api.get("v1/configmaps", "n", "goes").await.is_none().then_some(());
        if how == Barred::Fails {
            let within = std::time::Duration::from_secs(40);
            api.until_within(within, "the garbage of other kinds is collected", gone).await;
            assert!(api.get(role, "n", "of-the-kind").await.is_some(), "it cannot be seen");
            assert!(api.get("v1/configmaps", "n", "waits0").await.is_some(), "its owner cannot be seen");
            gate.open();
            let limit = std::time::Duration::from_secs(600);
            let gone = async |api: &Api| api.get(role, "n", "of-the-kind").await.is_none().then_some(());
            api.until_within(limit, "what could not be read is collected as well", gone).await;
            assert!(api.get("v1/configmaps", "n", "waits0").await.is_some(), "its owner is there");
        } else {
            // All workers may wait for a server that never responds, until each request times out.
            let within = std::time::Duration::from_secs(90);
            api.until_within(within, "the garbage of other kinds is collected", gone).await;
        }
    }
}

/// A definition of `things.example.com` with these served versions, the first of which is stored.
fn definition(versions: &[&str]) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let versions: Vec<Value> = versions
        .iter()
        .enumerate()
        .map(|(n, name)| json!({"name": name, "served": true, "storage": n == 0, "schema": schema}))
        .collect();
    json!({"metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing"}, "versions": versions}})
}

const DEFINITIONS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";

#[tokio::test(start_paused = true)]
async fn dependents_of_custom_objects_go_with_their_definition() {
    // Whether or not the deletion of the objects is observed, as the kind's watch may end before.
    for sees_them_go in [true, false] {
        let (api, gate) = (Api::start().await, Gate::default());
        api.namespace("n").await;
        let _running = run_through(&api, &[COLLECTOR], &gate);
        api.create(DEFINITIONS, definition(&["v1"])).await;
        let thing =
            json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t", "namespace": "n"}});
        let thing = api.create("example.com/v1/things", thing).await;
        let owner = ("example.com/v1", "Thing", "t", thing["metadata"]["uid"].as_str().unwrap());
        tokio::time::sleep(std::time::Duration::from_secs(40)).await;
        api.create("v1/configmaps", child("seen", owner)).await;
        api.settle().await;
        if !sees_them_go {
            gate.bar("/apis/example.com/v1/things", Barred::Unserved);
        }
        api.remove(DEFINITIONS, "", "things.example.com").await;
        api.create("v1/configmaps", child("late", owner)).await;
        for name in ["seen", "late"] {
            let gone = async |api: &Api| api.get("v1/configmaps", "n", name).await.is_none().then_some(());
            api.until(&format!("{name} goes, events are seen: {sees_them_go}"), gone).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_version_is_not_served_any_more_is_not_taken_for_gone() {
    let (api, gate) = (Api::start().await, Gate::default());
    api.namespace("n").await;
    api.create(DEFINITIONS, definition(&["v1", "v2"])).await;
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t", "namespace": "n"}});
    let thing = api.create("example.com/v1/things", thing).await;
    // The collector has the kind and cannot list its objects, and its versions are outdated.
    gate.bar("/apis/example.com/v1/things", Barred::Unserved);
    gate.bar("/apis/example.com/v2/things", Barred::Unserved);
    gate.bar("/apis/example.com/v1/namespaces", Barred::Unserved);
    gate.bar("/apis/example.com/v2/namespaces", Barred::Unserved);
    let _running = run_through(&api, &[COLLECTOR], &gate);
    let owner = ("example.com/v1", "Thing", "t", thing["metadata"]["uid"].as_str().unwrap());
    api.create("v1/configmaps", child("kept", owner)).await;
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    assert!(api.get("v1/configmaps", "n", "kept").await.is_some());
}
