//! The kubelet with the real API server in memory: which pod statuses it writes, and how often.
// Helpers of a test may panic, like the test itself.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use crate::common::{FakeProber, NoMounts};
use kelson_client::Client;
use kelson_kubelet::config::Config;
use kelson_kubelet::{Dependencies, Kubelet};
use kelson_simulation::{Api, FakeRuntime};
use kelson_tasks::Tasks;
use serde_json::json;

#[tokio::test(start_paused = true)]
async fn no_status_is_written_twice() {
    let api = Api::start().await;
    api.namespace("n").await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new("n1", dir.path());
    config.node_ips = vec!["192.0.2.1".parse().unwrap()];
    config.eviction.thresholds.clear();
    let runtime = FakeRuntime::new(Arc::new(api.clock));
    let deps = Dependencies {
        tasks: Tasks::root("test"),
        client: Client::new(api.transport("system:node:n1"), "kubelet"),
        runtime: Arc::clone(&runtime) as _,
        clock: Arc::new(api.clock),
        mounts: Arc::new(NoMounts),
        prober: Some(Arc::new(FakeProber::default())),
        on_pod_cidrs: None,
        certificate: None,
        network_gate: None,
    };
    let kubelet = Kubelet::start(config, deps).await.unwrap();
    let container = |name: &str, command: &[&str]| json!({"name": name, "image": "x:1", "command": command});
    let mut app = container("a", &[]);
    app["resources"] = json!({"requests": {"cpu": "10m"}});
    app["readinessProbe"] = json!({"exec": {"command": ["x"]}});
    let spec = json!({"nodeName": "n1", "initContainers": [container("i", &["exit-after", "3", "0"])],
        "automountServiceAccountToken": false, "containers": [app, container("b", &[])]});
    api.create("v1/pods", json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})).await;
    let ready = async |api: &Api| {
        let pod = api.get("v1/pods", "n", "p").await?;
        let ready = pod["status"]["containerStatuses"].as_array()?.iter().all(|c| c["ready"] == true);
        (ready && pod["status"]["phase"] == "Running").then_some(())
    };
    api.until("the pod is ready", ready).await;
    runtime.exit("b", 1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    api.until("it is ready again", ready).await;
    api.delete("v1/pods", "n", "p", json!({})).await;
    api.until("the pod is gone", async |api| api.get("v1/pods", "n", "p").await.is_none().then_some(())).await;
    kubelet.shutdown().await;

    let trace = api.faults.trace().tail(usize::MAX);
    let lines: Vec<&str> = trace.lines().collect();
    let written = lines.windows(2).filter(|pair| pair[0].contains("PATCH /api/v1/namespaces/n/pods/p/status"));
    let written: Vec<&str> = written.map(|pair| pair[1]).collect();
    assert!(written.len() >= 5, "{written:#?}");
    let twice = written.windows(2).find(|pair| pair[0] == pair[1]);
    assert!(twice.is_none(), "{twice:#?}");
}
