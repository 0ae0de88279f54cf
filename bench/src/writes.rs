//! The cost of writes, including readers in the process: the API server in memory, pods that are created, patched and
//! applied one after the other, and the informers of controllers and scheduler that read each change.
//!
//! `writes OPERATION COUNT [--no-readers]`, OPERATION one of `create`, `merge`, `status`, `apply`. The instructions of
//! one operation are the difference of two runs under a counter: `valgrind --tool=callgrind target/release/kelson-bench
//! writes create 300`, and the same with 100.
use http::Method;
use serde_json::{Value, json};

use crate::block_on;
use crate::control_plane::{Cluster, PODS, pod};

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// Returns a pod's status as a kubelet writes it; `n` makes each write differ.
fn status(n: usize) -> Value {
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let kinds = ["Initialized", "Ready", "ContainersReady", "PodScheduled"];
    json!({"status": {
        "phase": "Running", "podIP": "10.42.0.7", "podIPs": [{"ip": "10.42.0.7"}],
        "conditions": kinds.map(condition), "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [{
            "name": "web", "image": "registry.example.com/team/web:1.2.3", "imageID": "sha256:1", "ready": true,
            "restartCount": n, "started": true, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }],
    }})
}

async fn write(cluster: &Cluster, operation: &str, count: usize) -> anyhow::Result<()> {
    let one = format!("{PODS}/one");
    if operation != "create" {
        cluster.send(Method::POST, PODS, "application/json", &pod("one")).await?;
    }
    for n in 0..count {
        match operation {
            "create" => cluster.send(Method::POST, PODS, "application/json", &pod(&format!("pod-{n}"))).await?,
            "merge" => {
                let patch = json!({"metadata": {"annotations": {"example.com/turn": n.to_string()}}});
                cluster.send(Method::PATCH, &one, MERGE, &patch).await?;
            }
            "status" => cluster.send(Method::PATCH, &format!("{one}/status"), STRATEGIC, &status(n)).await?,
            "apply" => {
                let mut wanted = pod("applied");
                wanted["metadata"]["labels"]["turn"] = n.to_string().into();
                let path = format!("{PODS}/applied?fieldManager=writes");
                cluster.send(Method::PATCH, &path, APPLY, &wanted).await?;
            }
            other => anyhow::bail!("no operation {other:?}"),
        }
    }
    Ok(())
}

/// Runs COUNT operations.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    block_on(1, measure(args))
}

async fn measure(args: &[String]) -> anyhow::Result<()> {
    let [operation, count, more @ ..] = args else {
        anyhow::bail!("usage: writes OPERATION COUNT [--no-readers]");
    };
    let cluster = Cluster::start(!more.iter().any(|a| a == "--no-readers")).await?;
    let begun = std::time::Instant::now();
    let count = count.parse()?;
    write(&cluster, operation, count).await?;
    println!("{operation}: {count} in {:?}", begun.elapsed());
    // Waits until the readers have caught up.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    std::process::exit(0)
}
