//! The kubelet as a whole on the paused clock: stopping it leaves no tasks, and a worker that panics is restarted.
//!
//! A separate process: task counts are per process.
#[path = "suite/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{FakeApi, FakeProber, FakeRuntime, NoMounts, client, clock, open_body};
use kelson_client::{Request, Response};
use kelson_cri::Runtime;
use kelson_kubelet::config::Config;
use kelson_kubelet::{Dependencies, Kubelet, Running};
use kelson_tasks::Tasks;
use serde_json::{Value, json};

/// Names of all tasks that the kubelet starts, without those of the client.
const OWN: &[&str] = &[
    "pod-worker",
    "pod-sync",
    "pod-end",
    "probe",
    "pod-manager",
    "pods-synced",
    "mirror-pods",
    "pod-statuses",
    "pod-status",
    "node-status",
    "node-lease",
    "evictions",
    "image-collection",
    "log-rotation",
    "runtime-watch",
    "runtime-events",
    "pod-cidrs",
    "credential-providers",
    "manifests",
    "orphan-removal",
];

struct Node {
    kubelet: Running,
    runtime: Arc<FakeRuntime>,
    api: Arc<FakeApi>,
    tasks: Tasks,
    dir: tempfile::TempDir,
}

/// Responds to watches of pods with this pod as the complete list.
fn with_pod(pod: Value) -> impl Fn(&Request) -> Option<Response> + Send + Sync {
    move |request| {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        (path.ends_with("/pods") && query.contains("watch=true")).then(|| {
            let added = json!({"type": "ADDED", "object": pod});
            let end = json!({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}});
            Response::new(open_body(format!("{added}\n{end}\n")))
        })
    }
}

async fn start() -> Node {
    let tasks = Tasks::root("test");
    let (api, runtime) = (Arc::new(FakeApi::default()), FakeRuntime::new(clock()));
    let probe = json!({"exec": {"command": ["x"]}, "periodSeconds": 1});
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {"containers": [{"name": "a", "image": "x:1", "readinessProbe": probe}]}});
    *api.first.lock() = Some(Box::new(with_pod(pod)));
    let dir = tempfile::tempdir().expect("tempdir");
    let mut config = Config::new("n1", dir.path());
    config.node_ips = vec!["192.0.2.1".parse().expect("ip")];
    // The machine that runs the test may be short of resources.
    config.eviction.thresholds.clear();
    let deps = Dependencies {
        tasks: tasks.clone(),
        client: client(&api),
        runtime: Arc::clone(&runtime) as Arc<dyn Runtime>,
        clock: clock(),
        mounts: Arc::new(NoMounts),
        prober: Some(Arc::new(FakeProber::default())),
        on_pod_cidrs: None,
        certificate: None,
        network_gate: None,
    };
    let kubelet = Kubelet::start(config, deps).await.expect("started");
    Node { kubelet, runtime, api, tasks, dir }
}

impl Node {
    async fn until(&self, limit: u64, done: impl Fn(&Node) -> bool) {
        let begun = tokio::time::Instant::now();
        while !done(self) {
            let (events, status) = (self.api.events.lock().clone(), self.api.status.lock().clone());
            assert!(begun.elapsed() < Duration::from_secs(limit), "not within {limit} s: {events:?} {status:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn panicked(name: &str) -> u64 {
    kelson_tasks::stats().iter().find(|s| s.name == name).map_or(0, |s| s.panicked)
}

// One test, because the counts are per process.
#[tokio::test(start_paused = true)]
async fn a_worker_that_panics_recovers_and_the_end_leaves_no_task() {
    let node = start().await;
    node.until(30, |n| n.runtime.running() == ["a"] && n.api.phase() == "Running").await;
    assert!(node.dir.path().join("pods/u").is_dir());

    // The worker's next read of the runtime panics at the end of its container, which must be restarted afterwards.
    let before = panicked("pod-worker");
    node.runtime.panics.lock().insert("list_one_pod", 1);
    node.runtime.exit("a", 1);
    node.until(60, |n| n.runtime.running() == ["a"] && n.api.state()["restartCount"] == 1).await;
    assert_eq!(panicked("pod-worker") - before, 1);

    let running =
        || kelson_tasks::stats().into_iter().filter(|s| OWN.contains(&s.name) && s.running > 0).collect::<Vec<_>>();
    let names: Vec<&str> = running().iter().map(|s| s.name).collect();
    for name in ["pod-worker", "probe", "pod-manager", "mirror-pods", "pod-statuses", "node-status", "evictions"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    node.kubelet.shutdown().await;
    assert_eq!(running(), [], "after the end");
    assert!(node.tasks.is_idle());
    assert_eq!(node.runtime.running(), ["a"], "containers go on");
}
