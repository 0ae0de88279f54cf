//! A node that falls silent and comes back, on a paused clock.
use std::time::Duration;

use serde_json::{Value, json};

use crate::Config;
use crate::testing::run;
use kelson_simulation::Api;

fn ready(status: &str) -> Value {
    json!([{"type": "Ready", "status": status, "reason": "KubeletReady", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}])
}
async fn taints(api: &Api) -> Vec<(String, String)> {
    let node = api.get("v1/nodes", "", "n1").await.unwrap();
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let all = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    all.iter().map(|t| (text(&t["key"]), text(&t["effect"]))).collect()
}

#[tokio::test(start_paused = true)]
async fn silence_is_noticed_and_pods_are_moved() {
    let api = Api::start().await;
    api.namespace("n").await;
    let _running = run(&api, &["node-lifecycle-controller", "taint-eviction-controller"], Config::default()).await;
    api.create(
        "v1/nodes",
        json!({"metadata": {"name": "n1"}, "status": {"conditions": ready("True")},
        "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}}),
    )
    .await;
    let lease = |n: u32| json!({"renewTime": format!("2026-01-01T00:00:{n:02}.000000Z")});
    api.create(
        "coordination.k8s.io/v1/leases",
        json!({"metadata": {"name": "n1", "namespace": "kube-node-lease"}, "spec": lease(0)}),
    )
    .await;
    let tolerating = json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]);
    // The server makes a pod that says nothing wait for five minutes.
    let at_once = json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}]);
    let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    for (name, tolerations) in
        [("patient", tolerating), ("forever", json!([{"operator": "Exists"}])), ("none", at_once)]
    {
        api.create(
            "v1/pods",
            json!({"metadata": {"name": name, "namespace": "n"},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "c"}], "tolerations": tolerations}, "status": status}),
        ).await;
    }
    api.settle().await;
    assert!(taints(&api).await.is_empty(), "a ready node takes pods");
    for n in 1..12 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        api.change("coordination.k8s.io/v1/leases", "kube-node-lease", "n1", |v| v["spec"] = lease(n)).await;
    }
    api.settle().await;
    assert!(taints(&api).await.is_empty(), "leases are a sign of life");
    let writes = api.writes().len();
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(api.writes().len(), writes, "nothing before the grace is over");
    tokio::time::sleep(Duration::from_secs(10)).await;
    let node = api.get("v1/nodes", "", "n1").await.unwrap();
    let c = &node["status"]["conditions"][0];
    assert_eq!((&c["status"], &c["reason"]), (&json!("Unknown"), &json!("NodeStatusUnknown")));
    assert_eq!(node["status"]["conditions"][1]["reason"], "NodeStatusNeverUpdated");
    let unreachable = "node.kubernetes.io/unreachable".to_owned();
    assert_eq!(
        taints(&api).await,
        [(unreachable.clone(), "NoSchedule".to_owned()), (unreachable, "NoExecute".to_owned())]
    );
    let going =
        async |name: &str| !api.get("v1/pods", "n", name).await.unwrap()["metadata"]["deletionTimestamp"].is_null();
    assert!(going("none").await && !going("patient").await && !going("forever").await);
    tokio::time::sleep(Duration::from_secs(310)).await;
    assert!(going("patient").await && !going("forever").await);
    api.change("v1/nodes", "", "n1", |v| {
        v["status"]["conditions"] = ready("True");
        v["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2026-01-01T00:30:00Z");
    })
    .await;
    api.settle().await;
    assert!(taints(&api).await.is_empty());
}
