//! The row of `curves` about scheduling: the processes of a side are those of its API server and of its scheduler.
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::control_plane::{PODS, pod};
use crate::sides::{Side, print};
use crate::starts::fill;

const NODES: &str = "/api/v1/nodes";
/// Pods for each node.
const FOR_EACH_NODE: usize = 5;
const WAIT_MAX: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(100);

/// Creates pods for nodes without kubelets, until all are bound: CPU time for one pod in ms, and pods a second.
pub async fn pods(sides: &[Side], nodes: usize) -> anyhow::Result<()> {
    let (mut costs, mut rates) = (Vec::new(), Vec::new());
    let count = nodes * FOR_EACH_NODE;
    for side in sides {
        make_nodes(side, nodes).await?;
        let (cpu, begun) = (side.cpu_ms(), Instant::now());
        let for_scheduler = |n: usize| {
            let mut pod = pod(&format!("bound-{nodes}-{n}"));
            pod["spec"]["schedulerName"] = "default-scheduler".into();
            pod
        };
        fill(side, PODS, count, for_scheduler).await?;
        // Pods are bound about in their order.
        for n in [count - 1].into_iter().chain(0..count.min(100)) {
            while !is_bound(side, &format!("{PODS}/bound-{nodes}-{n}")).await? {
                anyhow::ensure!(begun.elapsed() < WAIT_MAX, "pod {n} is not bound");
                tokio::time::sleep(POLL).await;
            }
        }
        rates.push(count as f64 / begun.elapsed().as_secs_f64());
        costs.push((side.cpu_ms() - cpu) as f64 / count as f64);
    }
    print("pod created and bound: CPU time, ms", nodes, &costs);
    print("pods created and bound in a second", nodes, &rates);
    Ok(())
}

/// Makes nodes that are ready. A new node has a taint that only a controller removes.
async fn make_nodes(side: &Side, count: usize) -> anyhow::Result<()> {
    let account = json!({"metadata": {"name": "default"}});
    let _there = side.send(Method::POST, "/api/v1/namespaces/default/serviceaccounts", &account).await;
    let name = |n: usize| format!("ready-{n}");
    fill(side, NODES, count, |n| json!({"metadata": {"name": name(n), "labels": {"kubernetes.io/hostname": name(n)}}}))
        .await?;
    let resources = json!({"cpu": "64", "memory": "256Gi", "pods": "110"});
    let status = json!({"status": {"allocatable": resources, "capacity": resources,
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    for n in 0..count {
        let path = format!("{NODES}/{}", name(n));
        side.send(Method::PATCH, &format!("{path}/status"), &status).await?;
        side.send(Method::PATCH, &path, &json!({"spec": {"taints": null}})).await?;
    }
    Ok(())
}

async fn is_bound(side: &Side, path: &str) -> anyhow::Result<bool> {
    let pod: Value = serde_json::from_slice(&side.client.call(Method::GET, path, "", Bytes::new()).await?)?;
    Ok(pod["spec"]["nodeName"].is_string())
}
