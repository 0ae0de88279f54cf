//! Preemption for a critical pod on the paused clock: the manager ends another pod and starts the critical one afterwards.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{World, world};
use k8s_openapi::api::core::v1::{Node, Pod};
use kelson_kubelet::config::thresholds::Pressure;
use kelson_kubelet::pods::inbox::{ManagerInbox, PodChange};
use kelson_kubelet::pods::known::PodRegistry;
use kelson_kubelet::pods::manager::PodManager;
use kelson_tasks::{Scoped, scoped};
use serde_json::{Value, json};
use tokio::sync::watch;

/// A node with one CPU, and its manager.
struct OneCpu {
    world: World,
    inbox: ManagerInbox,
    _manager: Scoped<()>,
}

/// A pod with one container of the same name that requests this many millicores.
fn pod(name: &str, cpu: u32, priority: i64, status: Value) -> Arc<Pod> {
    let container = json!({"name": name, "image": "x:1", "resources": {"requests": {"cpu": format!("{cpu}m")}}});
    with_container(name, container, priority, status)
}

fn with_container(name: &str, container: Value, priority: i64, status: Value) -> Arc<Pod> {
    let pod = json!({"metadata": {"name": name, "namespace": "n", "uid": name}, "status": status,
        "spec": {"priority": priority, "terminationGracePeriodSeconds": 5, "containers": [container]}});
    Arc::new(serde_json::from_value(pod).expect("pod"))
}

fn start() -> OneCpu {
    let world = world();
    let node: Node = serde_json::from_value(
        json!({"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "1", "pods": "9"}}}),
    )
    .expect("node");
    let (node, node_now) = watch::channel(Some(Arc::new(node)));
    let (pressure, pressure_now) = watch::channel(Pressure::default());
    let (shutdown, shutdown_now) = watch::channel(false);
    // The senders live as long as the process, so nothing changes.
    std::mem::forget((node, pressure, shutdown));
    let inbox = ManagerInbox::default();
    let to_manager = inbox.clone();
    *world.runtime.changed.lock() = Some(Box::new(move || {
        for uid in ["usual", "small", "critical", "large"] {
            to_manager.runtime(uid.to_owned(), None);
        }
    }));
    let manager = PodManager::new(
        Arc::clone(&world.parts),
        node_now,
        (pressure_now, shutdown_now),
        inbox.clone(),
        PodRegistry::default(),
    );
    inbox.found(Vec::new());
    inbox.synced();
    OneCpu { _manager: scoped("manager", manager.run()), world, inbox }
}

impl OneCpu {
    fn pod(&self, name: &str, cpu: u32, priority: i64) {
        self.inbox.pod(PodChange::Is(pod(name, cpu, priority, Value::Null)));
    }

    fn running(&self) -> Vec<String> {
        let mut running = self.world.runtime.running();
        running.sort();
        running
    }

    async fn passes(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

const CRITICAL: i64 = 2_000_000_000;

#[tokio::test(start_paused = true)]
async fn preempted_pods_end_before_the_critical_pod_starts() {
    let node = start();
    node.pod("usual", 600, 0);
    node.pod("small", 300, 0);
    node.passes(5).await;
    assert_eq!(node.running(), ["small", "usual"]);
    node.pod("critical", 700, CRITICAL);
    node.passes(4).await;
    assert_eq!(node.running(), ["small"], "the critical one waits until the API knows that there is room");
    assert!(node.world.api.reasons().iter().any(|r| r == "Preempting"));
    let text = node.world.parts.effects.metrics.registry().text();
    assert!(text.contains("kubelet_preemptions{preemption_signal=\"cpu\"} 1"), "{text}");
    let status = node.world.api.status.lock().clone();
    assert_eq!((&status["reason"], &status["phase"]), (&json!("Preempting"), &json!("Failed")));
    node.inbox.pod(PodChange::Is(pod("usual", 600, 0, json!({"phase": "Failed"}))));
    node.passes(5).await;
    assert_eq!(node.running(), ["critical", "small"]);
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_preempted_for_a_pod_that_never_fits_or_is_not_critical() {
    let node = start();
    node.pod("usual", 600, 0);
    node.passes(5).await;
    node.pod("large", 1200, CRITICAL);
    node.pod("small", 500, 1000);
    node.passes(5).await;
    assert_eq!(node.running(), ["usual"]);
    let events: Vec<(String, String)> = node.world.api.events.lock().clone();
    let of = |reason: &str| events.iter().find(|(r, _)| r == reason).map(|(_, message)| message.clone());
    let why = "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to \
               preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 200), ]";
    assert_eq!(of("UnexpectedAdmissionError").as_deref(), Some(why));
    let short = "Node didn't have enough resource: cpu, requested: 500, used: 600, capacity: 1000";
    assert_eq!(of("OutOfcpu").as_deref(), Some(short), "the one that was refused before takes nothing");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_critical_pod_stops_waiting() {
    let node = start();
    node.pod("usual", 600, 0);
    node.passes(5).await;
    node.pod("critical", 700, CRITICAL);
    node.passes(1).await;
    let mut gone = (*pod("critical", 700, CRITICAL, Value::Null)).clone();
    gone.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2027-01-01T00:00:00Z")).expect("time"));
    node.inbox.pod(PodChange::Is(Arc::new(gone)));
    node.passes(5).await;
    assert!(!node.world.api.deleted.lock().is_empty(), "its deletion is confirmed at once");
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_the_containers_of_a_deleted_pod_whose_resources_it_needs() {
    let port = |name: &str| {
        let ports = json!([{"containerPort": 80, "hostPort": 8043}]);
        with_container(name, json!({"name": name, "image": "x:1", "ports": ports}), 0, Value::Null)
    };
    let cpu = |name: &str| pod(name, 600, 0, Value::Null);
    let replaced: [(&str, &dyn Fn(&str) -> Arc<Pod>); 2] = [("a port", &port), ("a CPU", &cpu)];
    for (what, of) in replaced {
        let node = start();
        node.world.runtime.slow.lock().insert("StopContainer", Duration::from_secs(3));
        node.inbox.pod(PodChange::Is(of("usual")));
        node.passes(5).await;
        assert_eq!(node.running(), ["usual"], "{what}");
        // The pod was force-deleted from the API, so the scheduler can place other pods.
        node.inbox.pod(PodChange::Gone(of("usual")));
        node.inbox.pod(PodChange::Is(of("large")));
        node.pod("small", 300, 0);
        node.passes(2).await;
        assert_eq!(node.running(), ["small", "usual"], "{what}: one that fits beside it does not wait");
        node.passes(5).await;
        assert_eq!(node.running(), ["large", "small"], "{what}");
        let events = node.world.api.events.lock().clone();
        let refused = ["OutOfcpu", "NodePorts"];
        assert!(events.iter().all(|(reason, _)| !refused.contains(&reason.as_str())), "{what}: {events:?}");
        assert!(events.iter().any(|(r, m)| r == "WaitingForTermination" && m.contains("usual_n(usual)")), "{events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_fit_with_staying_pods_is_rejected_at_once() {
    let node = start();
    node.world.runtime.slow.lock().insert("StopContainer", Duration::from_secs(3));
    node.pod("usual", 300, 0);
    node.pod("small", 600, 0);
    node.passes(5).await;
    node.inbox.pod(PodChange::Gone(pod("usual", 300, 0, Value::Null)));
    node.pod("large", 500, 0);
    node.passes(1).await;
    assert!(node.world.api.reasons().iter().any(|r| r == "OutOfcpu"), "the node has 1000, and 600 of them stay taken");
}
