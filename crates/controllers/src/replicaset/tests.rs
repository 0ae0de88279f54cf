//! A replica set against the API on a paused clock.
use kelson_simulation::{Api, DISTURBANCES, at_every_request};
use serde_json::{Value, json};

use crate::Config;
use crate::testing::{Gate, run, run_through};

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
        // Longer than the expectations of a write whose response was lost (five minutes).
        tokio::time::sleep(std::time::Duration::from_secs(400)).await;
        api.run_pods().await;
        assert_eq!((api.list("v1/pods").await.len(), left(&api).await), (1, 1));
        let status = api.get("apps/v1/replicasets", "n", "web").await.unwrap()["status"].clone();
        assert_eq!((&status["replicas"], &status["readyReplicas"]), (&json!(1), &json!(1)));
    })
    .await;
}

/// Rejects all pods as a kubelet without resources does.
async fn refuse_all(api: &Api) {
    for pod in api.list("v1/pods").await {
        if pod["status"]["phase"] == "Pending" && pod["spec"]["nodeName"] == "n1" {
            let status = json!({"status": {"phase": "Failed", "reason": "NodePorts", "message": "no free ports"}});
            api.patch("v1/pods", "n", pod["metadata"]["name"].as_str().unwrap(), "status", status).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_refuses_pods_gets_fewer_and_fewer() {
    let api = Api::start().await;
    api.namespace("n").await;
    let _running = run(&api, &["replicaset-controller"], Config::default()).await;
    let mut bound = set(1);
    bound["spec"]["template"]["spec"]["nodeName"] = json!("n1");
    api.create("apps/v1/replicasets", bound).await;
    for _ in 0..600 {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        refuse_all(&api).await;
    }
    let made = api.list("v1/pods").await.len();
    assert!((5..=8).contains(&made), "{made} pods in a minute");
    // A scale-up creates the additional pods at once.
    api.change("apps/v1/replicasets", "n", "web", |v| v["spec"]["replicas"] = json!(4)).await;
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let pending = api.list("v1/pods").await.iter().filter(|p| p["status"]["phase"] == "Pending").count();
    assert_eq!(pending, 3);
    // Once the node accepts pods, the last one is created, too.
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    let pending = api.list("v1/pods").await.iter().filter(|p| p["status"]["phase"] == "Pending").count();
    assert_eq!(pending, 4);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_goes_gets_no_pods() {
    let (api, gate) = (Api::start().await, Gate::default());
    api.namespace("n").await;
    let _running = run_through(&api, &["replicaset-controller"], &gate);
    api.create("apps/v1/replicasets", set(5)).await;
    api.settle().await;
    api.delete("v1/namespaces", "", "n", json!({})).await;
    api.settle().await;
    let before = api.writes().len();
    for pod in api.list("v1/pods").await {
        api.remove("v1/pods", "n", pod["metadata"]["name"].as_str().unwrap()).await;
    }
    api.settle().await;
    let asked = api.writes()[before..].iter().filter(|w| w.starts_with("POST ") && w.ends_with("/pods")).count();
    assert_eq!((asked, api.list("v1/pods").await.len()), (0, 0));
}
