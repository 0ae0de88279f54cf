//! kwok's template functions that read the cluster around the object.
use std::sync::Arc;

use gotmpl::{Result, Value, ValueFunc};
use jiff::Timestamp;
use serde_json::json;

use super::arguments::Arguments;
use super::convert::{list, text, to_template};
use super::surroundings::Surroundings;

/// A function that reads the cluster.
type Asking = fn(&dyn Surroundings, &Arguments<'_>) -> Result<Value>;

/// Formats a time in Go's `time.RFC3339Nano`, with only as many fractional digits as needed.
pub fn written(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.fZ").to_string()
}

fn first(ips: Vec<String>, surroundings: &dyn Surroundings) -> Value {
    text(ips.into_iter().next().unwrap_or_else(|| surroundings.node_ip()))
}

fn all(ips: Vec<String>, surroundings: &dyn Surroundings) -> Value {
    let usual = Some(surroundings.node_ip()).filter(|ip| ips.is_empty() && !ip.is_empty());
    list(ips.into_iter().chain(usual).map(text))
}

/// Returns the addresses of a pod. A pod in the host network has the addresses of its node.
fn of_pod(surroundings: &dyn Surroundings, a: &Arguments<'_>) -> Vec<String> {
    let node = a.text(0);
    if a.at(1).is_truthy() { surroundings.node_ips(&node) } else { surroundings.pod_ips(&node) }
}

const ROWS: [(&str, Asking); 11] = [
    ("Now", |s, _| Ok(text(written(s.now())))),
    ("StartTime", |s, _| Ok(text(written(s.started())))),
    ("Version", |s, _| Ok(text(s.version()))),
    ("NodeConditions", |_, _| Ok(conditions())),
    ("NodeIP", |s, _| Ok(text(s.node_ip()))),
    ("NodeName", |s, _| Ok(text(s.node_name()))),
    ("NodePort", |s, _| Ok(Value::Int(s.node_port().into()))),
    ("NodeIPWith", |s, a| Ok(first(s.node_ips(&a.text(0)), s))),
    ("NodeIPsWith", |s, a| Ok(all(s.node_ips(&a.text(0)), s))),
    ("PodIPWith", |s, a| Ok(first(of_pod(s, a), s))),
    ("PodIPsWith", |s, a| Ok(all(of_pod(s, a), s))),
];

/// Returns the conditions of a healthy node, as a kubelet and a route controller report them.
fn conditions() -> Value {
    let condition =
        |kind, status, reason, message| json!({"type": kind, "status": status, "reason": reason, "message": message});
    to_template(&json!([
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("NetworkUnavailable", "False", "RouteCreated", "RouteController created a route"),
    ]))
}

/// Returns these functions by name.
pub fn functions(surroundings: &Arc<dyn Surroundings>) -> impl Iterator<Item = (&'static str, ValueFunc)> {
    let asked = Arc::clone(surroundings);
    let pod_ip = Arc::clone(surroundings);
    let rows = ROWS.into_iter().map(move |(name, function)| {
        let surroundings = Arc::clone(&asked);
        let function: ValueFunc = Arc::new(move |a: &[Value]| function(&*surroundings, &Arguments(a)));
        (name, function)
    });
    // Without a node, only the range for all nodes is available.
    let any: ValueFunc = Arc::new(move |_: &[Value]| Ok(first(pod_ip.pod_ips(""), &*pod_ip)));
    rows.chain([("PodIP", any)])
}
