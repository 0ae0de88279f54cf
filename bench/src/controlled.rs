//! Rows of `curves` about what controllers do: the processes of a side are those of its API server and of its controller manager.
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::control_plane::PODS;
use crate::sides::{JSON, Side, print};
use crate::starts::fill;

const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// How long controllers may take for one row.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Pause in which controllers end what they began.
const SETTLED: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(100);

/// Deletes a namespace: CPU time for one of its objects in ms, memory at the peak in megabytes, and the time in seconds.
pub async fn namespace(sides: &[Side], count: usize) -> anyhow::Result<()> {
    let (mut costs, mut peaks, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for side in sides {
        let name = format!("emptied-{count}");
        side.send(Method::POST, "/api/v1/namespaces", &json!({"metadata": {"name": name}})).await?;
        let map =
            |n: usize| json!({"metadata": {"name": format!("map-{n}")}, "data": {"text": format!("{n} ").repeat(300)}});
        fill(side, &format!("/api/v1/namespaces/{name}/configmaps"), count, map).await?;
        tokio::time::sleep(SETTLED).await;
        let (peak, cpu, begun) = (side.peak_mb(), side.cpu_ms(), Instant::now());
        let path = format!("/api/v1/namespaces/{name}");
        side.send(Method::DELETE, &path, &json!({})).await?;
        while side.client.call(Method::GET, &path, "", Bytes::new()).await.is_ok() {
            anyhow::ensure!(begun.elapsed() < WAIT_MAX, "the namespace is not gone");
            tokio::time::sleep(POLL).await;
        }
        times.push(begun.elapsed().as_secs_f64());
        costs.push((side.cpu_ms() - cpu) as f64 / count as f64);
        peaks.push((side.peak_mb() - peak) as f64);
    }
    print("deleted namespace: ms for each object", count, &costs);
    print("deleted namespace: memory at peak, MB", count, &peaks);
    print("deleted namespace: seconds", count, &times);
    Ok(())
}

/// A pod of a Service becomes ready or unready: CPU time until the Endpoints object has it, in ms. The node of the pods has no kubelet, so
/// the controller manager runs with `--controllers=*,-node-lifecycle-controller,-taint-eviction-controller`.
pub async fn endpoints(sides: &[Side], count: usize) -> anyhow::Result<()> {
    let mut costs = Vec::new();
    for side in sides {
        let name = format!("served-{count}");
        let account = json!({"metadata": {"name": "default"}});
        let _there = side.send(Method::POST, "/api/v1/namespaces/default/serviceaccounts", &account).await;
        let service =
            json!({"metadata": {"name": name}, "spec": {"selector": {"served": name}, "ports": [{"port": 80}]}});
        side.send(Method::POST, "/api/v1/namespaces/default/services", &service).await?;
        let node = json!({"metadata": {"name": "served"}});
        let _there = side.send(Method::POST, "/api/v1/nodes", &node).await;
        let pod = |n: usize| {
            json!({"metadata": {"name": format!("{name}-{n}"), "labels": {"served": name}},
                "spec": {"nodeName": "served", "containers": [{"name": "c", "image": "i"}]}})
        };
        fill(side, PODS, count, pod).await?;
        for n in 0..count {
            set_ready(side, &name, n, true).await?;
        }
        tokio::time::sleep(SETTLED).await;
        let path = format!("/api/v1/namespaces/default/endpoints/{name}");
        let seen = version(side, &path).await?;
        let watch = format!(
            "/api/v1/namespaces/default/endpoints?watch=1&fieldSelector=metadata.name%3D{name}&resourceVersion={seen}"
        );
        let changes = side.client.raw_accepting(Method::GET, &watch, "", METADATA, Bytes::new()).await?.into_body();
        let changes = tokio::sync::Mutex::new(changes);
        // All pods become unready one after the other, and then ready again.
        let change = |turn: usize| {
            let (name, changes) = (&name, &changes);
            async move {
                set_ready(side, name, turn % count, turn / count % 2 == 1).await?;
                let event = tokio::time::timeout(WAIT_MAX, async { changes.lock().await.frame().await }).await?;
                event.context("the watch ended")??;
                Ok(())
            }
        };
        costs.push(side.cost(change).await?);
    }
    print("readiness in a Service: until Endpoints, ms", count, &costs);
    Ok(())
}

async fn version(side: &Side, path: &str) -> anyhow::Result<String> {
    let object = side.client.raw_accepting(Method::GET, path, "", JSON, Bytes::new()).await?;
    let object: Value = serde_json::from_slice(&kelson_client::Client::read(object).await?)?;
    Ok(object["metadata"]["resourceVersion"].as_str().context("an object without a revision")?.to_owned())
}

async fn set_ready(side: &Side, name: &str, n: usize, is_ready: bool) -> anyhow::Result<()> {
    let ip = format!("10.{}.{}.{}", 42 + n / 65536, n / 256 % 256, n % 256);
    let ready = if is_ready { "True" } else { "False" };
    let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    side.send(Method::PATCH, &format!("{PODS}/{name}-{n}/status"), &status).await
}
