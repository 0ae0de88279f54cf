//! Budgets and autoscalers in addition to the other workloads: users evict pods that budgets protect, and pod metrics
//! are served as custom resources for autoscalers.
use std::collections::BTreeSet;

use kelson_meta::{Clock as _, format_seconds};
use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::workloads::DEPLOYMENTS;

const BUDGETS: &str = "policy/v1/poddisruptionbudgets";
const AUTOSCALERS: &str = "autoscaling/v2/horizontalpodautoscalers";
const METRICS: &str = "metrics.k8s.io/v1beta1/pods";
/// The target CPU usage per pod of an autoscaler, in millicores.
const TARGET: u64 = 500;
/// The percentage of the target that a pod uses when there are exactly as many pods as the load needs: each usage is
/// rounded up to millicores, which at 100 percent would request one more pod.
const USED: u64 = 95;
/// The annotation with the load of all pods of a deployment, as a number of pods.
const LOAD: &str = "example.com/load";

/// Serves metrics of pods, as an extension would.
pub async fn serve_metrics(cluster: &Cluster) {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "pods.metrics.k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"}},
        "spec": {"group": "metrics.k8s.io", "scope": "Namespaced", "names": {"plural": "pods", "kind": "PodMetrics"},
            "versions": [{"name": "v1beta1", "served": true, "storage": true, "schema": schema}]}});
    cluster.api.create("apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
}

/// Creates a deployment with an autoscaler, and a budget for another one.
pub async fn begin(cluster: &Cluster, namespace: &str, n: usize, rng: &mut StdRng) {
    let meta = |name: &str| json!({"name": name, "namespace": namespace});
    let web = format!("web{n}");
    let spec = json!({"maxUnavailable": 1, "selector": {"matchLabels": {"app": web}}});
    cluster.api.create(BUDGETS, json!({"metadata": meta(&web), "spec": spec})).await;
    let elastic = format!("elastic{n}");
    let mut deployment = crate::workloads::any(DEPLOYMENTS, namespace, &elastic, rng);
    deployment["metadata"]["annotations"] = json!({LOAD: rng.random_range(1..=4).to_string()});
    cluster.api.create(DEPLOYMENTS, deployment).await;
    let target = json!({"type": "AverageValue", "averageValue": format!("{TARGET}m")});
    let metrics = json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]);
    let role_subjects = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": elastic});
    let spec = json!({"scaleTargetRef": role_subjects, "minReplicas": 2, "maxReplicas": 5, "metrics": metrics});
    cluster.api.create(AUTOSCALERS, json!({"metadata": meta(&elastic), "spec": spec})).await;
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the number of pods that the load of a deployment needs; the default if it was recreated.
fn load(deployment: &Value) -> u64 {
    deployment["metadata"]["annotations"][LOAD].as_str().and_then(|n| n.parse().ok()).unwrap_or(2)
}

/// Writes the usage of each running pod of an autoscaled deployment, and removes that of deleted pods. Errors in a
/// terminating namespace are ignored.
pub async fn measure(cluster: &Cluster) {
    let (pods, now) = (cluster.api.list("v1/pods").await, format_seconds(cluster.api.clock.now()));
    let mut measured = BTreeSet::new();
    for deployment in cluster.api.list(DEPLOYMENTS).await {
        let (namespace, name) = (text(&deployment, "/metadata/namespace"), text(&deployment, "/metadata/name"));
        let its = |o: &&Value| text(o, "/metadata/namespace") == namespace && text(o, "/metadata/labels/app") == name;
        let mine: Vec<&Value> = pods.iter().filter(its).filter(|p| text(p, "/status/phase") == "Running").collect();
        if !name.starts_with("elastic") {
            continue;
        }
        let each = load(&deployment) * TARGET * USED * 10_000 / (mine.len() as u64).max(1);
        for pod in mine.into_iter().map(|pod| text(pod, "/metadata/name")) {
            let containers = json!([{"name": "c", "usage": {"cpu": format!("{each}n"), "memory": "1Mi"}}]);
            let metadata = json!({"name": pod, "namespace": namespace, "labels": {"app": name}});
            let mut body = json!({"metadata": metadata, "timestamp": now, "window": "30s", "containers": containers});
            (body["apiVersion"], body["kind"]) = (json!("metrics.k8s.io/v1beta1"), json!("PodMetrics"));
            if cluster.api.try_create(METRICS, body.clone()).await.is_err() {
                let (path, merge) = (metrics_of(namespace, pod), "application/merge-patch+json");
                let _ = cluster.api.client().call(http::Method::PATCH, &path, merge, body.to_string().into()).await;
            }
            measured.insert((namespace.to_owned(), pod.to_owned()));
        }
    }
    for known in cluster.api.list(METRICS).await {
        let (namespace, pod) = (text(&known, "/metadata/namespace"), text(&known, "/metadata/name"));
        if !measured.contains(&(namespace.to_owned(), pod.to_owned())) {
            cluster.api.delete(METRICS, namespace, pod, json!({})).await;
        }
    }
}

fn metrics_of(namespace: &str, pod: &str) -> String {
    format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods/{pod}")
}

/// Evicts a pod that a budget protects, which may be rejected.
pub async fn evict(cluster: &Cluster, rng: &mut StdRng) {
    let pods = cluster.api.list("v1/pods").await;
    let mine: Vec<&Value> = pods.iter().filter(|p| text(p, "/metadata/labels/app").starts_with("web")).collect();
    if mine.is_empty() {
        return;
    }
    let pod = mine[rng.random_range(0..mine.len())];
    let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
    let metadata = json!({"name": name, "namespace": namespace});
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}).to_string();
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction");
    let sent = cluster.api.client().call(http::Method::POST, &path, "application/json", body.into()).await;
    let code = sent.map_or_else(|e| e.status().map_or(0, |s| s.code), |_| 201);
    cluster.trace.note("user", format_args!("evicts {namespace}/{name}: {code}"));
}

/// Checks that no budget ever allows more disruptions than it has, whatever failed meanwhile.
pub async fn within_budgets(cluster: &Cluster) -> Result<(), String> {
    for budget in cluster.api.list(BUDGETS).await {
        let of = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
        let spare = (of("currentHealthy") - of("desiredHealthy")).max(0);
        if !(0..=spare).contains(&of("disruptionsAllowed")) {
            return Err(format!("budget {}: {}", text(&budget, "/metadata/name"), budget["status"]));
        }
    }
    Ok(())
}

/// Checks that budgets count the existing pods, and that autoscaled deployments have the size that their load needs.
pub async fn settled(cluster: &Cluster) -> Result<(), String> {
    let deployments = cluster.api.list(DEPLOYMENTS).await;
    let named = |object: &Value| {
        let (namespace, name) = (text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        let is_it = |d: &&Value| text(d, "/metadata/namespace") == namespace && text(d, "/metadata/name") == name;
        deployments.iter().find(is_it)
    };
    for budget in cluster.api.list(BUDGETS).await {
        let wanted = named(&budget).and_then(|d| d["spec"]["replicas"].as_i64()).unwrap_or(0);
        let of = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
        let found = [of("expectedPods"), of("currentHealthy"), of("desiredHealthy"), of("disruptionsAllowed")];
        if found != [wanted, wanted, (wanted - 1).max(0), wanted.min(1)] {
            return Err(format!("budget {}: {wanted} wanted, {}", text(&budget, "/metadata/name"), budget["status"]));
        }
    }
    for autoscaler in cluster.api.list(AUTOSCALERS).await {
        let Some(deployment) = named(&autoscaler) else { continue };
        let replicas = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
        // A deployment that was scaled to zero is not autoscaled.
        let bearing = load(deployment).clamp(2, 5);
        if replicas != 0 && replicas != bearing {
            let name = text(&autoscaler, "/metadata/name");
            return Err(format!("{name}: {replicas} pods where {bearing} bear the load: {}", autoscaler["status"]));
        }
    }
    Ok(())
}
