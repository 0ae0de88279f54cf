//! A replica set against the API on a paused clock.
use serde_json::{Value, json};

use crate::Config;
use crate::testing::FakeApi;

fn set(replicas: i32) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "n"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "future": 1}]}}}})
}

#[tokio::test(start_paused = true)]
async fn makes_scales_and_reports() {
    let api = FakeApi::new();
    let _running = api.run(&["replicaset-controller"], Config::default());
    api.create("apps/v1/replicasets", set(7));
    api.settle().await;
    let pods = api.list("v1/pods");
    assert_eq!(pods.len(), 7);
    assert_eq!(pods[0]["spec"]["containers"][0]["future"], 1, "fields nobody here knows reach the pod");
    assert_eq!(pods[0]["metadata"]["ownerReferences"][0]["kind"], "ReplicaSet");
    let status = api.get("apps/v1/replicasets", "n", "web").unwrap()["status"].clone();
    assert_eq!(
        status,
        json!({"replicas": 7, "fullyLabeledReplicas": 7, "observedGeneration": 1, "terminatingReplicas": 0})
    );
    assert!(api.events().iter().any(|e| e.starts_with("SuccessfulCreate Created pod: web-")));

    api.change("apps/v1/replicasets", "n", "web", |v| v["spec"]["replicas"] = json!(2));
    api.settle().await;
    let going = api.list("v1/pods").iter().filter(|p| !p["metadata"]["deletionTimestamp"].is_null()).count();
    assert_eq!(going, 5);
    let status = api.get("apps/v1/replicasets", "n", "web").unwrap()["status"].clone();
    assert_eq!((&status["replicas"], &status["terminatingReplicas"]), (&json!(2), &json!(5)));

    let writes = api.writes().len();
    tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
    assert_eq!(api.writes().len(), writes, "at rest nothing is written");
}

#[tokio::test(start_paused = true)]
async fn replaces_adopts_and_releases() {
    let api = FakeApi::new();
    let _running = api.run(&["replicaset-controller"], Config::default());
    api.create("v1/pods", json!({"metadata": {"name": "stray", "namespace": "n", "labels": {"app": "web"}}}));
    api.create("apps/v1/replicasets", set(2));
    api.settle().await;
    assert_eq!(api.list("v1/pods").len(), 2, "the stray one counts");
    let stray = api.get("v1/pods", "n", "stray").unwrap();
    assert_eq!(stray["metadata"]["ownerReferences"][0]["controller"], true);
    api.change("v1/pods", "n", "stray", |v| v["metadata"]["labels"] = json!({"app": "debug"}));
    api.settle().await;
    let stray = api.get("v1/pods", "n", "stray").unwrap();
    assert_eq!(stray["metadata"]["ownerReferences"], json!([]));
    assert_eq!(api.list("v1/pods").len(), 3, "and is replaced");
    api.change("v1/pods", "n", "stray", |v| v["metadata"]["labels"] = json!({"app": "web"}));
    api.settle().await;
    let left = api.list("v1/pods").iter().filter(|p| p["metadata"]["deletionTimestamp"].is_null()).count();
    assert_eq!(left, 2, "one too many after it came back");
}
