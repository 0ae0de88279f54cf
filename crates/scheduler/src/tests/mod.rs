//! Tests of decisions: the input is nodes, placed pods and a new pod; the result is the node's name or the message.
mod arguments;
mod devices;
mod extended;
mod extenders;
mod new_plugin;
mod plugins;
mod preemption;
mod profiles;
mod queueing;
mod random;
mod volumes;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::core::{Core, Step};
use crate::view::{Node, Pod};

/// Merges `over` into `base`, objects key by key.
fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (k, v) in over {
                merge(base.entry(k.clone()).or_insert(Value::Null), v);
            }
        }
        (base, over) => *base = over.clone(),
    }
}

/// A node with 4 CPUs, 8Gi and room for 10 pods, with `over` merged in.
pub fn node(name: &str, over: Value) -> Arc<Node> {
    let mut n = json!({
        "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    });
    merge(&mut n, &over);
    Arc::new(serde_json::from_value(n).unwrap())
}

/// A pod without requests, with `over` merged in.
pub fn pod(name: &str, over: Value) -> Arc<Pod> {
    let mut p = json!({
        "metadata": {"name": name, "uid": name, "namespace": "default", "labels": {}},
        "spec": {"schedulerName": "default-scheduler", "containers": [{"name": "c", "image": "i"}]},
    });
    merge(&mut p, &over);
    Arc::new(serde_json::from_value(p).unwrap())
}

/// A pod that requests this much CPU.
pub fn asks(name: &str, cpu: &str, over: Value) -> Arc<Pod> {
    let mut p = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}});
    merge(&mut p, &over);
    pod(name, p)
}

/// The pod placed on a node.
pub fn on(node: &str, pod: Arc<Pod>) -> Arc<Pod> {
    Arc::new(pod.assigned_to(node))
}

pub fn core(nodes: &[Arc<Node>], placed: &[Arc<Pod>]) -> Core {
    let mut core = Core::new("default-scheduler", 0, 1);
    let now = Instant::now();
    nodes.iter().for_each(|n| core.put_node(n, now));
    placed.iter().for_each(|p| core.put_pod(Arc::clone(p), now));
    core
}

/// Schedules a pod: `Ok(node)` or `Err(message)`.
pub fn decide(core: &mut Core, pod: Arc<Pod>) -> Result<String, String> {
    let now = Instant::now();
    core.put_pod(pod, now);
    match core.step(now) {
        Step::Bind(p) => Ok(p.node_name.to_string()),
        Step::BindVolumes(b) => Err(format!("binds volumes on {}", b.plan.node)),
        Step::BindDevices(b) => Err(format!("gives devices on {}", b.pod.node_name)),
        Step::Report(r) => Err(r.message),
        Step::Preempt(p) => Err(format!("preempts {:?}", p.victims.iter().map(|v| &*v.name).collect::<Vec<_>>())),
        Step::Ask(q) => Err(format!("asks about {:?}", q.nodes.iter().map(|(name, _)| &**name).collect::<Vec<_>>())),
        Step::AskForRoom(q) => {
            Err(format!("asks for room on {:?}", q.rooms.iter().map(|r| &*r.node).collect::<Vec<_>>()))
        }
        Step::Idle(_) => Err("idle".into()),
    }
}

/// The message for a pod for which preemption does not help.
pub fn useless(message: &str, nodes: usize, tail: &str) -> Result<String, String> {
    let n = nodes;
    let devices = "no new claims to deallocate";
    Err(format!("0/{n} nodes are available: {message}. {devices}, preemption: 0/{n} nodes are available: {tail}."))
}

pub fn check(nodes: &[Arc<Node>], placed: &[Arc<Pod>], pod: Arc<Pod>, expected: Result<String, String>) {
    let name = pod.name.clone();
    assert_eq!(decide(&mut core(nodes, placed), pod), expected, "{name}");
}
