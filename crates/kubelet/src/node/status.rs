//! Computes the node's status from collected facts. Pure (upstream: `pkg/kubelet/nodestatus/setters.go`).
use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeSystemInfo;
use kelson_meta::{Quantity, format_seconds};
use serde_json::{Value, json};

use super::runtime::{HandlerFeatures, RuntimeState};
use crate::config::thresholds::Pressure;

/// Features of this kubelet that pods may require, by name (KEP-5328).
const DECLARED_FEATURES: [&str; 4] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];
/// Maximum number of names per image.
pub const IMAGE_NAMES_MAX: usize = 5;

/// Input for the status.
#[derive(Clone, Debug)]
pub struct NodeStatusInput {
    /// Name of the node, also reported as its host name.
    pub name: String,
    /// Addresses that the node reports, the primary one of each family first.
    pub ips: Vec<String>,
    /// Port of the kubelet's server; 0 means no server.
    pub port: u16,
    /// Capacity by resource.
    pub capacity: BTreeMap<String, Quantity>,
    /// Allocatable amounts by resource.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Value of `status.nodeInfo`.
    pub info: NodeSystemInfo,
    /// Pressure conditions of the eviction manager.
    pub pressure: Pressure,
    /// Whether the node is shutting down.
    pub shuts_down: bool,
    /// Names and size in bytes of images.
    pub images: Vec<(Vec<String>, u64)>,
    /// Maximum number of listed images, largest first; `None` means all.
    pub images_max: Option<usize>,
    /// CSI volumes that pods use or are about to use.
    pub volumes_in_use: Vec<String>,
    /// Status and features of the runtime.
    pub runtime: RuntimeState,
}

fn condition(kind: &str, status: bool, reason: &str, message: &str, old: &Value, now: Timestamp) -> Value {
    let status = if status { "True" } else { "False" };
    let before = old.as_array().into_iter().flatten().find(|c| c["type"] == kind);
    let same = before.filter(|c| c["status"] == status);
    let now = format_seconds(now);
    let transition = same.and_then(|c| c["lastTransitionTime"].as_str()).unwrap_or(&now);
    json!({"type": kind, "status": status, "reason": reason, "message": message,
        "lastHeartbeatTime": now, "lastTransitionTime": transition})
}

/// Builds the status; `old` has the node's current conditions.
pub fn status(f: &NodeStatusInput, old: &Value, now: Timestamp) -> NodeStatus {
    let p = f.pressure;
    let pressure = |kind: &str, under: bool, yes: (&str, &str), no: (&str, &str)| {
        let (reason, message) = if under { yes } else { no };
        condition(kind, under, reason, message, old, now)
    };
    let down = f.shuts_down.then(|| "node is shutting down".to_owned());
    let faults: Vec<String> = f.runtime.faults.iter().cloned().chain(down).collect();
    let is_ready = faults.is_empty();
    let ready = if is_ready {
        condition("Ready", true, "KubeletReady", "kubelet is posting ready status", old, now)
    } else {
        let message = match faults.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        condition("Ready", false, "KubeletNotReady", &message, old, now)
    };
    let mut addresses: Vec<Value> = f.ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
    addresses.push(json!({"type": "Hostname", "address": f.name}));
    let mut images = f.images.clone();
    images.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let images: Vec<Value> = images
        .into_iter()
        .take(f.images_max.unwrap_or(usize::MAX))
        .map(|(mut names, size)| {
            names.truncate(IMAGE_NAMES_MAX);
            json!({"names": names, "sizeBytes": size})
        })
        .collect();
    let mut out = json!({
        "addresses": addresses,
        "capacity": f.capacity,
        "allocatable": f.allocatable,
        "nodeInfo": f.info,
        "declaredFeatures": DECLARED_FEATURES,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": f.port}},
        "images": images,
        "conditions": [
            pressure("MemoryPressure", p.memory,
                ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
                ("KubeletHasSufficientMemory", "kubelet has sufficient memory available")),
            pressure("DiskPressure", p.disk,
                ("KubeletHasDiskPressure", "kubelet has disk pressure"),
                ("KubeletHasNoDiskPressure", "kubelet has no disk pressure")),
            pressure("PIDPressure", p.pid,
                ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
                ("KubeletHasSufficientPID", "kubelet has sufficient PID available")),
            ready,
        ],
    });
    let handler = |(name, f): (&String, &HandlerFeatures)| {
        let features =
            json!({"recursiveReadOnlyMounts": f.recursive_read_only_mounts, "userNamespaces": f.user_namespaces});
        json!({"name": name, "features": features})
    };
    if !f.runtime.handlers.is_empty() {
        out["runtimeHandlers"] = f.runtime.handlers.iter().map(handler).collect();
    }
    out["volumesInUse"] = json!(f.volumes_in_use);
    out["features"] = json!({"supplementalGroupsPolicy": f.runtime.supplemental_groups_policy});
    NodeStatus { tree: out, ready: is_ready }
}

/// A node's status for writing.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeStatus {
    /// The `status` object.
    pub tree: Value,
    /// Whether the condition `Ready` is true.
    pub ready: bool,
}

/// Returns whether two statuses differ in more than heartbeat times.
pub fn differ(a: &Value, b: &Value) -> bool {
    let bare = |v: &Value| {
        let mut v = v.clone();
        for c in v["conditions"].as_array_mut().into_iter().flatten() {
            if let Some(c) = c.as_object_mut() {
                c.remove("lastHeartbeatTime");
            }
        }
        v
    };
    bare(a) != bare(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_follows_errors_and_heartbeats_are_no_change() {
        let f = NodeStatusInput {
            name: "n".into(),
            ips: vec!["1.2.3.4".into()],
            port: 10250,
            capacity: BTreeMap::new(),
            allocatable: BTreeMap::new(),
            info: NodeSystemInfo::default(),
            pressure: Pressure::default(),
            shuts_down: false,
            images: vec![(vec!["a".into()], 1), (vec!["b".into()], 2), (vec!["c".into()], 3)],
            images_max: Some(2),
            volumes_in_use: vec!["v".into()],
            runtime: RuntimeState::default(),
        };
        let t0 = Timestamp::from_second(1000).expect("time");
        let t1 = Timestamp::from_second(2000).expect("time");
        let a = status(&f, &Value::Null, t0);
        assert!(a.ready);
        let a = a.tree;
        assert_eq!(a["conditions"][3]["reason"], "KubeletReady");
        assert_eq!((&a["images"][0]["sizeBytes"], a["images"].as_array().map(Vec::len)), (&json!(3), Some(2)));
        let all = status(&NodeStatusInput { images_max: None, ..f.clone() }, &Value::Null, t0).tree;
        assert_eq!(all["images"].as_array().map(Vec::len), Some(3));
        assert_eq!(a["volumesInUse"], json!(["v"]));
        let b = status(&f, &a["conditions"], t1).tree;
        assert!(!differ(&a, &b) && a != b);
        let faults = vec!["container runtime network not ready: x".into()];
        let handlers = [(String::new(), HandlerFeatures { user_namespaces: true, ..Default::default() })].into();
        let down = status(&NodeStatusInput { shuts_down: true, ..f.clone() }, &b["conditions"], t1);
        assert!(!down.ready);
        assert_eq!(down.tree["conditions"][3]["message"], "node is shutting down");
        let broken = NodeStatusInput { runtime: RuntimeState { faults, handlers, ..Default::default() }, ..f };
        let c = status(&broken, &b["conditions"], t1);
        assert!(!c.ready);
        let c = c.tree;
        assert_eq!(c["runtimeHandlers"][0]["features"]["userNamespaces"], true);
        assert!(differ(&b, &c));
        assert_eq!(c["conditions"][3]["message"], "container runtime network not ready: x");
        assert_eq!(c["conditions"][3]["lastTransitionTime"], "1970-01-01T00:33:20Z");
        assert_eq!(c["conditions"][0]["lastTransitionTime"], "1970-01-01T00:16:40Z");
    }
}
