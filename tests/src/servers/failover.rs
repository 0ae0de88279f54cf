//! Nodes whose servers are killed: they use another server, renew their Leases there and stay ready.
use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::cluster::{Cluster, PATIENCE};
use super::https::Https;
use super::member::Datastore;
use crate::eventually;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const NODES: &str = "/api/v1/nodes";

/// Leaves each server alone in turn, by killing all others at once (one of them, if members of etcd are killed with their servers). Every
/// node renews its Lease at one that is left, and is ready all the time.
pub fn failover(cluster: &mut Cluster) -> anyhow::Result<()> {
    let all = cluster.stations.len();
    // Members of etcd that are killed with their servers must leave a quorum.
    let lost = if cluster.datastore == Datastore::Managed { 1 } else { all - 1 };
    for left in 0..all {
        let others: Vec<usize> = (1..=lost).map(|n| (left + n) % all).collect();
        let mut client = cluster.client(left);
        eventually("every node has a Lease", PATIENCE, || {
            let leases = renewals(&mut client)?;
            ensure!(leases.len() == all, "{leases:?}");
            ensure_ready(&mut client, all)
        })?;
        for &other in &others {
            cluster.stations[other].server.kill();
        }
        // What is renewed after this was renewed at a server that is left.
        let before = renewals(&mut client)?;
        eventually("every node renews its Lease at a server that is left", PATIENCE, || {
            ensure_ready(&mut client, all)?;
            let now = renewals(&mut client)?;
            let late: Vec<&String> = before.iter().filter(|(n, at)| now.get(*n) == Some(*at)).map(|(n, _)| n).collect();
            ensure!(late.is_empty(), "not renewed: {late:?}");
            Ok(())
        })
        .with_context(|| cluster.logs())?;
        for &other in &others {
            cluster.stations[other].server.start()?;
            cluster.until_ready(other)?;
        }
    }
    Ok(())
}

/// Returns when each Lease of a node was renewed.
fn renewals(client: &mut Https) -> anyhow::Result<BTreeMap<String, String>> {
    let (code, list) = client.call("GET", LEASES, &Value::Null)?;
    let items = list["items"].as_array().with_context(|| format!("{code} {list}"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(items.iter().map(|lease| (text(&lease["metadata"]["name"]), text(&lease["spec"]["renewTime"]))).collect())
}

fn ensure_ready(client: &mut Https, nodes: usize) -> anyhow::Result<()> {
    let (code, list) = client.call("GET", NODES, &Value::Null)?;
    let items = list["items"].as_array().with_context(|| format!("{code} {list}"))?;
    let is_ready = |node: &&Value| {
        let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let ready = items.iter().filter(is_ready).count();
    ensure!(ready == nodes, "{ready} of {nodes} nodes are ready");
    Ok(())
}
