//! The memory of objects, including readers in the process: pods are created, get the status that a kubelet writes, and
//! are listed in protobuf; after each step, the resident memory of the process is printed.
//!
//! `memory COUNT`
use anyhow::Context as _;
use http::Method;
use serde_json::{Value, json};

use crate::block_on;
use crate::control_plane::{Cluster, PODS, pod};

const STRATEGIC: &str = "application/strategic-merge-patch+json";
const PAUSE: std::time::Duration = std::time::Duration::from_secs(3);

/// Returns resident memory of this process in KiB.
fn resident_kib() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Prints the memory, and its increase per object.
async fn show(what: &str, before: u64, count: u64) -> anyhow::Result<u64> {
    // Readers catch up, and the allocator returns unused memory.
    tokio::time::sleep(PAUSE).await;
    let now = resident_kib()?;
    let each = now.saturating_sub(before) * 1024 / count;
    println!("{what}: {:.1} MB resident, {each} bytes for each pod since the start", now as f64 / 1000.0 * 1.024);
    Ok(now)
}

fn status(n: u64) -> Value {
    let at = format!("2026-01-01T{:02}:{:02}:{:02}Z", n / 3600 % 24, n / 60 % 60, n % 60);
    let ip = format!("10.{}.{}.{}", 42 + n / 65536, n / 256 % 256, n % 256);
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": at});
    let kinds = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    json!({"status": {
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "192.0.2.1", "hostIPs": [{"ip": "192.0.2.1"}],
        "conditions": kinds.map(condition), "startTime": at,
        "containerStatuses": [{
            "name": "web", "image": "registry.example.com/team/web:1.2.3", "imageID": "sha256:1", "ready": true,
            "containerID": format!("containerd://{:064x}", u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_0123_4567)),
            "restartCount": 0, "started": true, "state": {"running": {"startedAt": at}},
        }],
    }})
}

/// Prints the memory after each step.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let count = args.first().context("usage: memory COUNT")?.parse()?;
    block_on(2, measure(count))
}

async fn measure(count: u64) -> anyhow::Result<()> {
    let cluster = Cluster::start(true).await?;
    let before = show("at rest", 0, count).await?;
    for n in 0..count {
        cluster.send(Method::POST, PODS, "application/json", &pod(&format!("web-5d4f8c7b9-{n:05}"))).await?;
    }
    show("made", before, count).await?;
    for n in 0..count {
        let path = format!("{PODS}/web-5d4f8c7b9-{n:05}/status?fieldManager=kubelet");
        cluster.send(Method::PATCH, &path, STRATEGIC, &status(n)).await?;
    }
    show("running", before, count).await?;
    let protobuf = "application/vnd.kubernetes.protobuf";
    let answer = cluster.client.raw_accepting(Method::GET, "/api/v1/pods", "", protobuf, Default::default()).await?;
    let answer = kelson_client::Client::read(answer).await?;
    println!("{} bytes of protobuf", answer.len());
    drop(answer);
    show("listed in protobuf", before, count).await?;
    std::process::exit(0)
}
