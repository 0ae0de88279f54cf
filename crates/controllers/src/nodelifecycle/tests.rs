//! Nodes that stop and resume their heartbeats, on a paused clock.
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::{Clock, format_micro};
use serde_json::{Value, json};

use crate::testing::run;
use crate::{Config, Running};
use kelson_simulation::Api;

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const LEASES: &str = "coordination.k8s.io/v1/leases";

fn ready(status: &str) -> Value {
    json!([{"type": "Ready", "status": status, "reason": "KubeletReady", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}])
}

async fn taints(api: &Api, node: &str) -> Vec<(String, String)> {
    let node = api.get("v1/nodes", "", node).await.unwrap();
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let all = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    all.iter().map(|t| (text(&t["key"]), text(&t["effect"]))).collect()
}

/// An API server with these ready nodes and both controllers of nodes.
async fn start(nodes: &[&str]) -> (Api, Running) {
    let api = Api::start().await;
    api.namespace("n").await;
    let running = run(&api, &["node-lifecycle-controller", "taint-eviction-controller"], Config::default()).await;
    for name in nodes {
        api.create(
            "v1/nodes",
            json!({"metadata": {"name": name}, "status": {"conditions": ready("True")},
            "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}}),
        )
        .await;
        api.create(LEASES, json!({"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": {}})).await;
    }
    api.settle().await;
    (api, running)
}

/// Advances time while these nodes send heartbeats.
async fn pass(api: &Api, seconds: u64, alive: &[&str]) {
    for _ in 0..seconds / 10 {
        for name in alive {
            let now = format_micro(api.clock.now());
            api.change(LEASES, "kube-node-lease", name, |v| v["spec"]["renewTime"] = json!(now)).await;
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    api.settle().await;
}

/// A pod on `n1` that tolerates an unreachable node for this many seconds, or without limit for `None`.
async fn pod(api: &Api, name: &str, seconds: Option<u64>) {
    let toleration = match seconds {
        None => json!({"operator": "Exists"}),
        Some(s) => json!({"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": s}),
    };
    let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    api.create(
        "v1/pods",
        json!({"metadata": {"name": name, "namespace": "n"}, "status": status,
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "c"}], "tolerations": [toleration]}}),
    )
    .await;
}

async fn is_going(api: &Api, name: &str) -> bool {
    !api.get("v1/pods", "n", name).await.unwrap()["metadata"]["deletionTimestamp"].is_null()
}

fn unreachable() -> [(String, String); 2] {
    ["NoSchedule", "NoExecute"].map(|effect| (UNREACHABLE.to_owned(), effect.to_owned()))
}

#[tokio::test(start_paused = true)]
async fn silence_is_noticed_and_pods_are_moved() {
    let (api, _running) = start(&["n1", "n2"]).await;
    for (name, seconds) in [("patient", Some(300)), ("forever", None), ("none", Some(0))] {
        pod(&api, name, seconds).await;
    }
    pass(&api, 120, &["n1", "n2"]).await;
    assert!(taints(&api, "n1").await.is_empty(), "a ready node takes pods, and leases are a sign of life");
    pass(&api, 30, &["n2"]).await;
    assert!(taints(&api, "n1").await.is_empty(), "nothing before the grace is over");
    pass(&api, 20, &["n2"]).await;
    let node = api.get("v1/nodes", "", "n1").await.unwrap();
    let c = &node["status"]["conditions"][0];
    assert_eq!((&c["status"], &c["reason"]), (&json!("Unknown"), &json!("NodeStatusUnknown")));
    assert_eq!(node["status"]["conditions"][1]["reason"], "NodeStatusNeverUpdated");
    assert_eq!(taints(&api, "n1").await, unreachable());
    assert!(is_going(&api, "none").await && !is_going(&api, "patient").await && !is_going(&api, "forever").await);
    pass(&api, 310, &["n2"]).await;
    assert!(is_going(&api, "patient").await && !is_going(&api, "forever").await);
    api.change("v1/nodes", "", "n1", |v| {
        v["status"]["conditions"] = ready("True");
        v["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2026-01-01T00:30:00Z");
    })
    .await;
    api.settle().await;
    assert!(taints(&api, "n1").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn where_no_node_is_ready_no_pod_is_moved() {
    let (api, _running) = start(&["n1", "n2"]).await;
    pod(&api, "stays", Some(60)).await;
    pass(&api, 60, &["n2"]).await;
    assert_eq!(taints(&api, "n1").await, unreachable(), "one of two");
    pass(&api, 600, &[]).await;
    for node in ["n1", "n2"] {
        assert_eq!(
            taints(&api, node).await,
            unreachable()[..1],
            "{node}: nothing is put on it, and nothing is planned"
        );
    }
    assert!(!is_going(&api, "stays").await, "its minute was not over when the last node fell silent");
    // One node is back, so the other's pods may be evicted again.
    api.change("v1/nodes", "", "n2", |v| {
        v["status"]["conditions"] = ready("True");
        v["status"]["conditions"][0]["lastHeartbeatTime"] = json!("2026-01-01T00:30:00Z");
    })
    .await;
    pass(&api, 30, &["n2"]).await;
    assert_eq!((taints(&api, "n1").await.as_slice(), taints(&api, "n2").await.len()), (&unreachable()[..], 0));
    pass(&api, 60, &["n2"]).await;
    assert!(is_going(&api, "stays").await);
}

#[tokio::test(start_paused = true)]
async fn nodes_lose_their_pods_one_after_the_other() {
    let names = ["n1", "n2", "n3", "n4", "n5"];
    let (api, _running) = start(&names).await;
    pass(&api, 60, &names).await;
    let driven = async |api: &Api| {
        let mut count = 0;
        for name in names {
            count += usize::from(taints(api, name).await.len() == 2);
        }
        count
    };
    // Two of five stopped ten seconds ago. They are detected after 50 seconds and tainted one after the other.
    pass(&api, 40, &names[2..]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(driven(&api).await, 1);
    pass(&api, 10, &names[2..]).await;
    assert_eq!(driven(&api).await, 2);
    // Four of five are too many for a small zone.
    pass(&api, 300, &names[4..]).await;
    assert_eq!(driven(&api).await, 2);
}

/// The log lines of this thread.
#[derive(Clone, Default)]
struct Logged(Arc<parking_lot::Mutex<Vec<u8>>>);

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_restarts_with_its_server_is_no_loss() {
    let logged = Logged::default();
    let to = logged.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(move || to.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let says_so = || String::from_utf8_lossy(&logged.0.lock()).contains("no node has been ready");
    let (api, _running) = start(&["n1"]).await;
    let become_ready = async |value: &str| {
        api.change("v1/nodes", "", "n1", |v| v["status"]["conditions"] = ready(value)).await;
    };
    become_ready("False").await;
    pass(&api, 30, &["n1"]).await;
    become_ready("True").await;
    pass(&api, 120, &["n1"]).await;
    assert!(!says_so(), "it was not ready for half a minute");
    become_ready("False").await;
    pass(&api, 90, &["n1"]).await;
    assert!(says_so());
}

#[tokio::test(start_paused = true)]
async fn the_node_of_the_control_plane_gets_its_role() {
    let api = Api::start().await;
    for name in ["server", "other"] {
        api.create("v1/nodes", json!({"metadata": {"name": name}})).await;
    }
    let config = Config { control_plane_node: "server".into(), ..Config::default() };
    let _running = run(&api, &["node-lifecycle-controller"], config).await;
    let role = |node: Value| node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"].clone();
    api.until("the label", async |api| (role(api.get("v1/nodes", "", "server").await?) == "").then_some(())).await;
    api.settle().await;
    assert_eq!(role(api.get("v1/nodes", "", "other").await.unwrap()), Value::Null);
}
