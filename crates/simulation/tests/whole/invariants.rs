//! Invariants that must hold once faults have ended.
use std::collections::BTreeSet;

use serde_json::Value;

use crate::cluster::{Cluster, NODES};
use crate::watched::Watched;
use crate::workloads::{ALL, DAEMON_SETS, DEPLOYMENTS, JOBS, STATEFUL_SETS};

/// Returns the error `why` unless `holds`.
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

/// Checks that the cluster is as its objects say, and that nothing is left of deleted objects.
pub async fn settled(cluster: &Cluster, watched: &Watched, doomed: &str) -> Result<(), String> {
    let pods = cluster.api.list("v1/pods").await;
    nodes(cluster).await?;
    namespace_is_gone(cluster, doomed).await?;
    for resource in [DEPLOYMENTS, STATEFUL_SETS, DAEMON_SETS] {
        for workload in cluster.api.list(resource).await {
            servers(resource, &workload, &pods)?;
        }
    }
    for job in cluster.api.list(JOBS).await {
        finished(&job, watched)?;
    }
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
        "apps/v1/statefulsets",
        "apps/v1/daemonsets",
        "apps/v1/controllerrevisions",
        "batch/v1/jobs",
        "discovery.k8s.io/v1/endpointslices",
    ] {
        let all = cluster.api.list(resource).await;
        let left = all.iter().find(|o| text(o, "/metadata/namespace") == doomed);
        must(left.is_none(), || format!("{resource} left: {}", left.unwrap_or(&Value::Null)["metadata"]))?;
    }
    Ok(())
}

/// Checks that a workload that serves has the desired replicas, by its own count and by ours, and that all of them are
/// up to date.
fn servers(resource: &str, workload: &Value, pods: &[Value]) -> Result<(), String> {
    let (namespace, name) = (text(workload, "/metadata/namespace"), text(workload, "/metadata/name"));
    let keys: &[&str] = match resource {
        DAEMON_SETS => &[
            "desiredNumberScheduled",
            "currentNumberScheduled",
            "updatedNumberScheduled",
            "numberReady",
            "numberAvailable",
        ],
        _ => &["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"],
    };
    let wanted = match resource {
        DAEMON_SETS => NODES as i64,
        _ => workload["spec"]["replicas"].as_i64().unwrap_or(0),
    };
    let observed = workload["status"]["observedGeneration"] == workload["metadata"]["generation"];
    let counts = keys.iter().all(|key| workload["status"][*key].as_i64().unwrap_or(0) == wanted);
    must(observed && counts, || format!("{resource} {namespace}/{name}: {wanted} wanted, {}", workload["status"]))?;
    let uid = text(workload, "/metadata/uid");
    let mine: Vec<&Value> = pods
        .iter()
        .filter(|p| text(p, "/metadata/namespace") == namespace && text(p, "/metadata/labels/app") == name)
        .filter(|p| !is_terminal(p) && p["metadata"]["deletionTimestamp"].is_null())
        .collect();
    must(mine.len() as i64 == wanted, || format!("{namespace}/{name}: {wanted} wanted, {} pods", mine.len()))?;
    let image = text(workload, "/spec/template/spec/containers/0/image");
    for pod in &mine {
        must(is_ready(pod), || format!("{} is not ready: {}", pod["metadata"]["name"], pod["status"]))?;
        must(text(pod, "/spec/containers/0/image") == image, || format!("{} is old", pod["metadata"]["name"]))?;
    }
    if resource == DEPLOYMENTS {
        return Ok(());
    }
    let owned = mine.iter().all(|p| text(p, "/metadata/ownerReferences/0/uid") == uid);
    must(owned, || format!("{namespace}/{name} does not own all of its pods"))?;
    let slots: BTreeSet<&str> = mine
        .iter()
        .map(|p| match resource {
            DAEMON_SETS => text(p, "/spec/nodeName"),
            _ => text(p, "/metadata/name"),
        })
        .collect();
    must(slots.len() as i64 == wanted, || format!("{namespace}/{name}: a slot has two pods: {slots:?}"))?;
    let ordinals = (0..wanted).map(|n| format!("{name}-{n}"));
    let ordered = resource != STATEFUL_SETS || ordinals.clone().all(|o| slots.contains(o.as_str()));
    must(ordered, || format!("{namespace}/{name}: {slots:?}"))
}

/// Checks that a job has ended, unless it is suspended, and that its counts are exact.
fn finished(job: &Value, watched: &Watched) -> Result<(), String> {
    let (name, status) = (text(job, "/metadata/name"), &job["status"]);
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let succeeded = watched.succeeded(text(job, "/metadata/uid")) as u64;
    let uncounted = &status["uncountedTerminatedPods"];
    let uncounted = ["succeeded", "failed"].iter().any(|k| uncounted[*k].as_array().is_some_and(|l| !l.is_empty()));
    must(number(&status["succeeded"]) == succeeded && !uncounted, || {
        format!("job {name}: {succeeded} pods succeeded, it counts {status}")
    })?;
    must(number(&status["active"]) == 0, || format!("job {name}: {status}"))?;
    if job["spec"]["suspend"] == true {
        return Ok(());
    }
    let all = status["conditions"].as_array();
    let complete = all.is_some_and(|c| c.iter().any(|c| c["type"] == "Complete" && c["status"] == "True"));
    let wanted = number(&job["spec"]["completions"]);
    must(complete && number(&status["succeeded"]) == wanted, || format!("job {name}: {wanted} wanted, {status}"))
}

/// Checks that no owner is missing: dependents of a deleted owner are collected.
async fn owners(cluster: &Cluster, pods: &[Value]) -> Result<(), String> {
    let mut all = Vec::new();
    for resource in ALL.into_iter().chain(["apps/v1/replicasets", "apps/v1/controllerrevisions"]) {
        all.extend(cluster.api.list(resource).await);
    }
    let uids: BTreeSet<&str> = all.iter().map(|o| text(o, "/metadata/uid")).collect();
    for object in all.iter().chain(pods) {
        for owner in object["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
            let there = uids.contains(text(owner, "/uid"));
            must(there, || format!("{} of a gone owner is left", object["metadata"]["name"]))?;
        }
        let going = !object["metadata"]["deletionTimestamp"].is_null();
        must(!going, || format!("{} never goes: {}", object["metadata"]["name"], object["metadata"]))?;
        let held = is_terminal(object) && object["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        must(!held, || format!("{} is over and held: {}", object["metadata"]["name"], object["metadata"]))?;
    }
    Ok(())
}

/// Checks that exactly the containers of bound pods run, each on its pod's node.
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

/// Checks that slices and the Endpoints object have exactly the addresses of the service's ready pods.
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
