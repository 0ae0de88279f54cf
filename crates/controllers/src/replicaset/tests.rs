//! A replica set against the API on a paused clock.
use kelson_simulation::{Api, DISTURBANCES, at_every_request};
use serde_json::{Value, json};

use crate::Config;
use crate::testing::run;

fn set(replicas: i32) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "n"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "example.com/c:1"}]}}}})
}

/// The pods that are not being deleted.
async fn left(api: &Api) -> usize {
    api.list("v1/pods").await.iter().filter(|p| p["metadata"]["deletionTimestamp"].is_null()).count()
}

#[tokio::test(start_paused = true)]
async fn makes_scales_and_reports() {
    let api = Api::start().await;
    api.namespace("n").await;
    let _running = run(&api, &["replicaset-controller"], Config::default()).await;
    api.create("apps/v1/replicasets", set(7)).await;
    api.settle().await;
    let pods = api.list("v1/pods").await;
    assert_eq!(pods.len(), 7);
    assert_eq!(pods[0]["spec"]["containers"][0]["image"], "example.com/c:1");
    assert_eq!(pods[0]["metadata"]["ownerReferences"][0]["kind"], "ReplicaSet");
    let status = api.get("apps/v1/replicasets", "n", "web").await.unwrap()["status"].clone();
    assert_eq!(
        status,
        json!({"replicas": 7, "fullyLabeledReplicas": 7, "observedGeneration": 1, "terminatingReplicas": 0})
    );
    assert!(api.events().await.iter().any(|e| e.starts_with("SuccessfulCreate Created pod: web-")));

    api.run_pods().await;
    api.change("apps/v1/replicasets", "n", "web", |v| v["spec"]["replicas"] = json!(2)).await;
    api.settle().await;
    assert_eq!((api.list("v1/pods").await.len(), left(&api).await), (7, 2), "kubelets end five");
    let status = api.get("apps/v1/replicasets", "n", "web").await.unwrap()["status"].clone();
    assert_eq!((&status["replicas"], &status["terminatingReplicas"]), (&json!(2), &json!(5)));
    assert_eq!((&status["readyReplicas"], &status["availableReplicas"]), (&json!(2), &json!(2)));

    let writes = api.writes().len();
    tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
    assert_eq!(api.writes().len(), writes, "at rest nothing is written");
}

#[tokio::test(start_paused = true)]
async fn replaces_adopts_and_releases() {
    let api = Api::start().await;
    api.namespace("n").await;
    let _running = run(&api, &["replicaset-controller"], Config::default()).await;
    let mut stray = json!({"metadata": {"name": "stray", "namespace": "n", "labels": {"app": "web"}}});
    stray["spec"] = set(0)["spec"]["template"]["spec"].clone();
    api.create("v1/pods", stray).await;
    api.create("apps/v1/replicasets", set(2)).await;
    api.settle().await;
    assert_eq!(api.list("v1/pods").await.len(), 2, "the stray one counts");
    let stray = api.get("v1/pods", "n", "stray").await.unwrap();
    assert_eq!(stray["metadata"]["ownerReferences"][0]["controller"], true);
    api.change("v1/pods", "n", "stray", |v| v["metadata"]["labels"] = json!({"app": "debug"})).await;
    api.settle().await;
    let stray = api.get("v1/pods", "n", "stray").await.unwrap();
    assert!(stray["metadata"]["ownerReferences"].is_null());
    assert_eq!(api.list("v1/pods").await.len(), 3, "and is replaced");
    api.change("v1/pods", "n", "stray", |v| v["metadata"]["labels"] = json!({"app": "web"})).await;
    api.settle().await;
    assert_eq!(left(&api).await, 2, "one too many after it came back");
}

#[tokio::test(start_paused = true)]
async fn a_failure_at_any_write_is_got_over() {
    at_every_request(&DISTURBANCES, async |api: Api| {
        api.namespace("n").await;
        let _running = run(&api, &["replicaset-controller"], Config::default()).await;
        api.create("apps/v1/replicasets", set(3)).await;
        api.settle().await;
        api.run_pods().await;
        api.change("apps/v1/replicasets", "n", "web", |v| v["spec"]["replicas"] = json!(1)).await;
        // Longer than what was expected of a write is waited for whose answer was lost (five minutes).
        tokio::time::sleep(std::time::Duration::from_secs(400)).await;
        api.run_pods().await;
        assert_eq!((api.list("v1/pods").await.len(), left(&api).await), (1, 1));
        let status = api.get("apps/v1/replicasets", "n", "web").await.unwrap()["status"].clone();
        assert_eq!((&status["replicas"], &status["readyReplicas"]), (&json!(1), &json!(1)));
    })
    .await;
}
