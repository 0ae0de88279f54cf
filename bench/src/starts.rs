//! Rows of `curves` about a server that starts with what it stored before: `SUBJECT_RESTART` and `PEER_RESTART` are shell commands that end
//! the server, start it again and print its processes (comma-separated).
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use serde_json::json;

use crate::sides::{Side, print};

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Requests at a time that fill a server.
pub const AT_ONCE: usize = 16;
/// Pause after a start, in which what it began ends and what it needed alone is freed.
const SETTLED: Duration = Duration::from_secs(5);
const START_MAX: Duration = Duration::from_secs(120);

/// Starts with many roles that `view` gathers: the CPU time in ms.
pub async fn with_roles(sides: &[Side], count: usize) -> anyhow::Result<()> {
    let mut costs = Vec::new();
    for side in sides {
        let labels = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
        let role = |n: usize| {
            let rule = json!({"apiGroups": ["example.com"], "resources": [format!("kind-{n}")], "verbs": ["get"]});
            json!({"metadata": {"name": format!("gathered-{n}"), "labels": labels}, "rules": [rule]})
        };
        fill(side, ROLES, count, role).await?;
        let started = restart(side).await?;
        // Roles may be gathered after the start.
        tokio::time::sleep(SETTLED).await;
        costs.push(started.cpu_ms() as f64);
    }
    print("start with gathered roles: CPU time, ms", count, &costs);
    Ok(())
}

/// Starts with many config maps: the CPU time in ms, and the memory at the peak and afterwards in megabytes.
pub async fn with_maps(sides: &[Side], count: usize) -> anyhow::Result<()> {
    let (mut costs, mut peaks, mut later) = (Vec::new(), Vec::new(), Vec::new());
    for side in sides {
        let map =
            |n: usize| json!({"metadata": {"name": format!("map-{n}")}, "data": {"text": format!("{n} ").repeat(50)}});
        fill(side, MAPS, count, map).await?;
        let started = restart(side).await?;
        costs.push(started.cpu_ms() as f64);
        tokio::time::sleep(SETTLED).await;
        peaks.push(started.peak_mb() as f64);
        later.push(started.resident_mb() as f64);
    }
    print("start with config maps: CPU time, ms", count, &costs);
    print("start with config maps: memory at peak, MB", count, &peaks);
    print("start with config maps: memory later, MB", count, &later);
    Ok(())
}

/// Makes the objects with these numbers, of which some may be there.
pub async fn fill(
    side: &Side,
    path: &str,
    count: usize,
    object: impl Fn(usize) -> serde_json::Value,
) -> anyhow::Result<()> {
    let made = stream::iter((0..count).map(|n| {
        let object = object(n);
        async move {
            let _there = side.send(Method::POST, path, &object).await;
            anyhow::Ok(())
        }
    }));
    made.buffer_unordered(AT_ONCE).try_collect().await
}

/// Starts a side's server again; the side with its new processes, once it is ready.
async fn restart(side: &Side) -> anyhow::Result<Side> {
    let command = side.restart.clone().context("starts are measured where …_RESTART is a command")?;
    // Nothing else runs meanwhile.
    let done = Command::new("sh").args(["-c", &command]).stderr(Stdio::inherit()).output()?;
    let pids = Side::processes(std::str::from_utf8(&done.stdout)?)?;
    let client = side.another_client()?;
    let started = Side { client, pids, config: side.config.clone(), restart: side.restart.clone() };
    let begun = Instant::now();
    while started.client.call(Method::GET, "/readyz", "", Default::default()).await.is_err() {
        anyhow::ensure!(begun.elapsed() < START_MAX, "the server did not become ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(started)
}
