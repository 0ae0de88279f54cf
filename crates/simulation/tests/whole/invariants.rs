//! What must hold: some of it always, the rest when nothing fails any more.
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::cluster::Cluster;

/// Says why, unless `holds`.
fn must(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn is_terminal(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

/// What has been seen so far, for that which must always hold.
#[derive(Default)]
pub struct Watched {
    /// The node of each bound pod, by UID.
    bound: BTreeMap<String, String>,
}

impl Watched {
    /// No pod moves from one node to another, and none runs on two.
    pub async fn look(&mut self, cluster: &Cluster) -> Result<(), String> {
        for pod in cluster.api.list("v1/pods").await {
            let (uid, node) = (text(&pod, "/metadata/uid"), text(&pod, "/spec/nodeName"));
            if node.is_empty() {
                must(!self.bound.contains_key(uid), || format!("pod {uid} was bound and is not any more"))?;
                continue;
            }
            let before = self.bound.entry(uid.to_owned()).or_insert_with(|| node.to_owned());
            must(before == node, || format!("pod {uid} was bound to {before} and is bound to {node}"))?;
        }
        let mut runs: BTreeMap<String, &str> = BTreeMap::new();
        for node in &cluster.nodes {
            for (namespace, name, uid) in node.runtime.running_pods() {
                let other = runs.insert(uid, &node.name).filter(|other| *other != node.name);
                must(other.is_none(), || format!("{namespace}/{name} runs on {} and {other:?}", node.name))?;
                // A pod may have been removed from the API meanwhile, but it never ran anywhere but where it was bound.
            }
        }
        for (uid, node) in runs {
            let bound = self.bound.get(&uid);
            must(bound.is_none_or(|b| b == node), || format!("pod {uid} runs on {node} and is bound to {bound:?}"))?;
        }
        Ok(())
    }
}

/// Whether the cluster is what its objects say, and nothing is left of what is gone.
pub async fn settled(cluster: &Cluster, doomed: &str) -> Result<(), String> {
    let pods = cluster.api.list("v1/pods").await;
    nodes(cluster).await?;
    namespace_is_gone(cluster, doomed).await?;
    deployments(cluster, &pods).await?;
    owners(cluster, &pods).await?;
    containers(cluster, &pods)?;
    for service in cluster.api.list("v1/services").await {
        if service["spec"]["selector"].is_object() {
            endpoints(cluster, &service, &pods).await?;
        }
    }
    Ok(())
}

async fn nodes(cluster: &Cluster) -> Result<(), String> {
    let all = cluster.api.list("v1/nodes").await;
    must(all.len() == cluster.nodes.len(), || format!("{} nodes", all.len()))?;
    let ranges: BTreeSet<&str> = all.iter().map(|n| text(n, "/spec/podCIDR")).filter(|r| !r.is_empty()).collect();
    must(ranges.len() == all.len(), || format!("pod ranges {ranges:?}"))?;
    for node in &all {
        let name = text(node, "/metadata/name");
        must(is_ready(node), || format!("node {name} is not ready: {}", node["status"]["conditions"]))?;
        let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
        let foreign = taints.find(|t| t["key"] != "node.kubernetes.io/unschedulable");
        must(foreign.is_none(), || format!("node {name} has the taint {foreign:?}"))?;
    }
    Ok(())
}

async fn namespace_is_gone(cluster: &Cluster, doomed: &str) -> Result<(), String> {
    let there = cluster.api.get("v1/namespaces", "", doomed).await;
    must(there.is_none(), || format!("namespace {doomed} is still there: {}", there.unwrap_or_default()["status"]))?;
    for resource in [
        "v1/pods",
        "v1/services",
        "v1/endpoints",
        "v1/configmaps",
        "v1/serviceaccounts",
        "v1/events",
        "apps/v1/deployments",
        "apps/v1/replicasets",
        "discovery.k8s.io/v1/endpointslices",
    ] {
        let all = cluster.api.list(resource).await;
        let left = all.iter().find(|o| text(o, "/metadata/namespace") == doomed);
        must(left.is_none(), || format!("{resource} left: {}", left.unwrap_or(&Value::Null)["metadata"]))?;
    }
    Ok(())
}

/// Whether every deployment has what it asks for, by its own count and by ours. Nothing can be placed on a cluster whose
/// nodes are all cordoned: then pods that wait for a node are as they should be.
async fn deployments(cluster: &Cluster, pods: &[Value]) -> Result<(), String> {
    let nodes = cluster.api.list("v1/nodes").await;
    let open = nodes.iter().any(|n| n["spec"]["unschedulable"] != true);
    for d in cluster.api.list("apps/v1/deployments").await {
        let (namespace, name) = (text(&d, "/metadata/namespace"), text(&d, "/metadata/name"));
        let label = text(&d, "/spec/selector/matchLabels/app");
        let number = |key: &str| d["status"][key].as_i64().unwrap_or(0);
        let wanted = d["spec"]["replicas"].as_i64().unwrap_or(0);
        let observed = d["status"]["observedGeneration"] == d["metadata"]["generation"];
        let counts = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"].map(number);
        let mine: Vec<&Value> = pods
            .iter()
            .filter(|p| text(p, "/metadata/namespace") == namespace && text(p, "/metadata/labels/app") == label)
            .filter(|p| !is_terminal(p) && p["metadata"]["deletionTimestamp"].is_null())
            .collect();
        let waiting = mine.iter().any(|p| text(p, "/spec/nodeName").is_empty());
        if !open && waiting {
            continue;
        }
        must(observed && counts == [wanted; 4], || format!("{namespace}/{name}: {wanted} wanted, {}", d["status"]))?;
        must(mine.len() as i64 == wanted, || format!("{namespace}/{name}: {wanted} wanted, {} pods", mine.len()))?;
        let image = text(&d, "/spec/template/spec/containers/0/image");
        for pod in mine {
            must(is_ready(pod), || format!("{} is not ready: {}", pod["metadata"]["name"], pod["status"]))?;
            must(text(pod, "/spec/containers/0/image") == image, || format!("{} is old", pod["metadata"]["name"]))?;
        }
    }
    Ok(())
}

/// Whether no owner is missing: what a gone owner leaves is collected.
async fn owners(cluster: &Cluster, pods: &[Value]) -> Result<(), String> {
    let sets = cluster.api.list("apps/v1/replicasets").await;
    let deployments = cluster.api.list("apps/v1/deployments").await;
    let uids: BTreeSet<&str> = sets.iter().chain(&deployments).map(|o| text(o, "/metadata/uid")).collect();
    for object in sets.iter().chain(pods) {
        for owner in object["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
            let there = uids.contains(text(owner, "/uid"));
            must(there, || format!("{} of a gone owner is left", object["metadata"]["name"]))?;
        }
        let going = !object["metadata"]["deletionTimestamp"].is_null();
        must(!going, || format!("{} never goes: {}", object["metadata"]["name"], object["metadata"]))?;
    }
    Ok(())
}

/// Whether exactly the containers of bound pods run, each on its pod's node.
fn containers(cluster: &Cluster, pods: &[Value]) -> Result<(), String> {
    for node in &cluster.nodes {
        let bound = pods.iter().filter(|p| text(p, "/spec/nodeName") == node.name && !is_terminal(p));
        let bound: BTreeSet<String> = bound.map(|p| text(p, "/metadata/uid").to_owned()).collect();
        let runs: Vec<String> = node.runtime.running_pods().into_iter().map(|(_, _, uid)| uid).collect();
        let unique: BTreeSet<String> = runs.iter().cloned().collect();
        must(unique == bound, || format!("node {}: {bound:?} bound, {unique:?} run", node.name))?;
        must(runs.len() == unique.len(), || format!("node {}: a container runs twice", node.name))?;
    }
    Ok(())
}

/// Whether slices and the legacy object hold exactly the addresses of the service's ready pods.
async fn endpoints(cluster: &Cluster, service: &Value, pods: &[Value]) -> Result<(), String> {
    let (namespace, name) = (text(service, "/metadata/namespace"), text(service, "/metadata/name"));
    let app = text(service, "/spec/selector/app");
    let ready: BTreeSet<&str> = pods
        .iter()
        .filter(|p| text(p, "/metadata/namespace") == namespace && text(p, "/metadata/labels/app") == app)
        .filter(|p| is_ready(p) && !is_terminal(p))
        .map(|p| text(p, "/status/podIP"))
        .collect();
    let slices = cluster.api.list("discovery.k8s.io/v1/endpointslices").await;
    let sliced: BTreeSet<&str> = slices
        .iter()
        .filter(|s| text(s, "/metadata/namespace") == namespace)
        .filter(|s| s["metadata"]["labels"]["kubernetes.io/service-name"] == name)
        .flat_map(|s| s["endpoints"].as_array().into_iter().flatten())
        .filter(|e| e["conditions"]["ready"] == true)
        .map(|e| text(e, "/addresses/0"))
        .collect();
    must(sliced == ready, || format!("service {namespace}/{name}: {ready:?} ready, slices have {sliced:?}"))?;
    let legacy = cluster.api.get("v1/endpoints", namespace, name).await.unwrap_or_default();
    let subsets = legacy["subsets"].as_array().into_iter().flatten();
    let legacy: BTreeSet<&str> =
        subsets.flat_map(|s| s["addresses"].as_array().into_iter().flatten()).map(|a| text(a, "/ip")).collect();
    must(legacy == ready, || format!("service {namespace}/{name}: {ready:?} ready, endpoints have {legacy:?}"))
}
