//! Admission of a pod by the node: repeats the scheduler's checks against the node's actual state (upstream:
//! `pkg/kubelet/lifecycle/predicate.go`).
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod};
use kelson_meta::LabelSelectorRequirement;
use kelson_meta::Quantity;

use crate::config::thresholds::Pressure;
use crate::node::runtime::RuntimeState;
use crate::pod;

/// Name of the resource that counts pods.
const PODS: &str = "pods";

/// Reason and message of a rejection. The event has both as they are; the status prefixes the message with "Pod was rejected".
pub type Rejection = (String, String);

/// Why a pod cannot run on this node.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The pod does not suit the node, even if the node were empty.
    Unfit(Rejection),
    /// One or more resources are insufficient.
    Shortage(Vec<Shortage>),
}

impl Refusal {
    /// Converts to the reason and message of a rejection. Only the first insufficient resource is named.
    pub fn rejection(self) -> Rejection {
        match self {
            Self::Unfit(rejection) => rejection,
            Self::Shortage(short) => short.into_iter().next().map(Shortage::rejection).unwrap_or_default(),
        }
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        Self::Unfit(rejection)
    }
}

/// State of the node that admission depends on.
#[derive(Clone, Copy, Debug)]
pub struct NodeState<'a> {
    /// `--allowed-unsafe-sysctls`: names or prefixes.
    pub allowed_unsafe_sysctls: &'a [String],
    /// The Node object; `None` before it was read.
    pub node: Option<&'a Node>,
    /// Current pressure conditions.
    pub pressure: Pressure,
    /// Whether the node is shutting down.
    pub shuts_down: bool,
    /// Status and features of the container runtime.
    pub runtime: &'a RuntimeState,
    /// Resources that registered device plugins advertise.
    pub devices: &'a BTreeSet<String>,
    /// Whether containers can get exclusive CPUs or memory.
    pub exclusive: bool,
}

/// Checks whether `pod` can run on the node in addition to `others`.
///
/// # Errors
/// The reason. Insufficient resources are checked last, so that nothing is preempted for a pod that cannot run anyway.
pub fn admit(here: &NodeState<'_>, pod: &Pod, others: &[Arc<Pod>]) -> Result<(), Refusal> {
    suits(here, pod, others)?;
    let short = here.node.map(|node| shortages(pod, others, node, here.devices)).unwrap_or_default();
    if short.is_empty() { Ok(()) } else { Err(Refusal::Shortage(short)) }
}

/// Returns the pods of `gone` (deleted pods whose containers are still ending) that hold something that `pod` needs in addition to what
/// `staying` use: host ports, resources, devices, exclusive CPUs or exclusive memory.
pub fn in_the_way(here: &NodeState<'_>, pod: &Pod, staying: &[Arc<Pod>], gone: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let mut beside = staying.to_vec();
    let mut held = Vec::new();
    for other in gone.iter().filter(|p| !pod::is_terminal(p)) {
        beside.push(Arc::clone(other));
        if contends(here, pod, other) || admit(here, pod, &beside).is_err() {
            held.extend(beside.pop());
        }
    }
    held
}

/// Returns whether both pods need a kind of resource that is assigned exclusively and that [`admit`] does not count.
fn contends(here: &NodeState<'_>, pod: &Pod, other: &Pod) -> bool {
    let both_guaranteed = || [pod, other].iter().all(|p| pod::qos_class(p) == "Guaranteed");
    here.devices.iter().any(|d| wanted(pod, d) > 0 && wanted(other, d) > 0) || here.exclusive && both_guaranteed()
}

/// Runs all checks that do not depend on free resources.
fn suits(here: &NodeState<'_>, pod: &Pod, others: &[Arc<Pod>]) -> Result<(), Rejection> {
    if here.shuts_down {
        return Err(("NodeShutdown".into(), "Pod was rejected as the node is shutting down.".into()));
    }
    if let Some(message) = refused_by_pressure(pod, here.pressure) {
        return Err((crate::config::thresholds::EVICTED.into(), message));
    }
    if let Some(message) = crate::runtime::sandbox::forbidden_sysctl(pod, here.allowed_unsafe_sysctls) {
        return Err(("SysctlForbidden".into(), message));
    }
    refused_by_runtime(pod, here.runtime)?;
    let Some(node) = here.node else { return Ok(()) };
    let none = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    let os = pod.spec.as_ref().and_then(|s| s.os.as_ref()).map(|o| o.name.as_str());
    if os.is_some_and(|os| os != "linux") {
        return Err(("PodOSNotSupported".into(), "Failed to admit pod as the OS field doesn't match node OS".into()));
    }
    if !matches_affinity(pod, labels, node.metadata.name.as_deref().unwrap_or_default()) {
        let message = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
        return Err(("NodeAffinity".into(), message.into()));
    }
    if ports_taken(pod, others) {
        let message = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
        return Err(("NodePorts".into(), message.into()));
    }
    Ok(())
}

/// Returns whether another pod on the node uses a host port of this pod.
fn ports_taken(pod: &Pod, others: &[Arc<Pod>]) -> bool {
    let wanted = host_ports(pod);
    if wanted.is_empty() {
        return false;
    }
    let everywhere = |ip: &str| ip.is_empty() || ip == "0.0.0.0";
    let clash = |(a_ip, a_protocol, a): &(&str, &str, i32), (b_ip, b_protocol, b): &(&str, &str, i32)| {
        a == b && a_protocol == b_protocol && (a_ip == b_ip || everywhere(a_ip) || everywhere(b_ip))
    };
    let active = others.iter().filter(|p| !pod::is_terminal(p) && pod::uid(p) != pod::uid(pod));
    active.flat_map(|p| host_ports(p)).any(|theirs| wanted.iter().any(|own| clash(own, &theirs)))
}

/// Returns the host ports of a pod: address, protocol, number.
fn host_ports(pod: &Pod) -> Vec<(&str, &str, i32)> {
    let spec = pod.spec.as_ref();
    // Sidecars (init containers that keep running) use host ports as well.
    let sidecars = spec.iter().flat_map(|s| s.init_containers.iter().flatten());
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.iter().flat_map(|s| &s.containers).chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    let taken = ports.filter_map(|p| {
        let number = p.host_port.filter(|n| *n > 0)?;
        Some((p.host_ip.as_deref().unwrap_or(""), p.protocol.as_deref().unwrap_or("TCP"), number))
    });
    taken.collect()
}

/// A resource of which the node has too little.
#[derive(Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Name of the resource, for example `cpu`.
    pub resource: String,
    /// Requested, used and total amount, in upstream's words; CPU in millicores.
    pub message: String,
    /// Missing amount in the resource's unit; CPU in millicores.
    pub missing: i64,
}

impl Shortage {
    fn rejection(self) -> Rejection {
        (format!("OutOf{}", self.resource), self.message)
    }
}

/// Rejects a pod whose groups the runtime cannot provide: such a pod must not run without them. Until the runtime has reported its features,
/// the sandbox's creation checks this. User namespaces are checked there alone, like upstream's: a rejected pod of a Deployment is replaced
/// by another one at once, and a pod that waits is not.
fn refused_by_runtime(pod: &Pod, runtime: &RuntimeState) -> Result<(), Rejection> {
    if !runtime.answered {
        return Ok(());
    }
    if pod::has_strict_groups(pod) && !runtime.supplemental_groups_policy {
        let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
        return Err(("SupplementalGroupsPolicyNotSupported".into(), message.into()));
    }
    Ok(())
}

/// Rejects pods on a node under pressure, except critical pods. If only memory is short, pods that are not `BestEffort` or that tolerate
/// the taint are admitted as well.
fn refused_by_pressure(pod: &Pod, pressure: Pressure) -> Option<String> {
    let all = [("MemoryPressure", pressure.memory), ("DiskPressure", pressure.disk), ("PIDPressure", pressure.pid)];
    let held: Vec<&str> = all.into_iter().filter(|(_, holds)| *holds).map(|(name, _)| name).collect();
    if held.is_empty() || pod::is_critical(pod) {
        return None;
    }
    if held == ["MemoryPressure"] {
        let key = "node.kubernetes.io/memory-pressure";
        let tolerates = pod.spec.iter().flat_map(|s| s.tolerations.iter().flatten()).any(|t| {
            t.key.as_deref().is_none_or(|k| k.is_empty() || k == key)
                && (t.operator.as_deref() == Some("Exists") || t.key.as_deref() == Some(key))
                && t.effect.as_deref().is_none_or(|e| e.is_empty() || e == "NoSchedule")
        });
        if pod::qos_class(pod) != "BestEffort" || tolerates {
            return None;
        }
    }
    Some(format!("The node had condition: [{}]. ", held.join(" ")))
}

/// Checks whether a pod's requests fit in addition to those of `others`; see [`shortages`].
///
/// # Errors
/// The first insufficient resource.
pub fn fits(pod: &Pod, others: &[Arc<Pod>], node: &Node, devices: &BTreeSet<String>) -> Result<(), Shortage> {
    shortages(pod, others, node, devices).into_iter().next().map_or(Ok(()), Err)
}

/// Returns the resources that are insufficient for a pod in addition to `others`; the pod itself is skipped if `others` contains it.
/// Resources in `devices` are not checked, because only the device table knows the current number: the Node object may be older than the
/// plugins' last report, and the scheduler may have seen a device before this kubelet reads its own Node again.
fn shortages(pod: &Pod, others: &[Arc<Pod>], node: &Node, devices: &BTreeSet<String>) -> Vec<Shortage> {
    let none = BTreeMap::new();
    let allocatable = node.status.as_ref().and_then(|s| s.allocatable.as_ref()).unwrap_or(&none);
    let active: Vec<_> = others.iter().filter(|p| !pod::is_terminal(p) && pod::uid(p) != pod::uid(pod)).collect();
    let mut resources: Vec<&str> = vec![PODS, "cpu", "memory", "ephemeral-storage"];
    let is_counted = |k: &&str| k.starts_with("hugepages-") || k.contains('/') && !devices.contains(*k);
    resources.extend(allocatable.keys().map(String::as_str).filter(is_counted));
    let mut short = Vec::new();
    for r in resources {
        let Some(capacity) = allocatable.get(r).map(pod::quantity) else { continue };
        let (wanted, capacity) = (wanted(pod, r), number(r, capacity));
        if wanted == 0 {
            continue;
        }
        let used = active.iter().fold(0i64, |sum, p| sum.saturating_add(self::wanted(p, r)));
        let missing = used.saturating_add(wanted).saturating_sub(capacity);
        if missing > 0 {
            let message = format!(
                "Node didn't have enough resource: {r}, requested: {wanted}, used: {used}, capacity: {capacity}"
            );
            short.push(Shortage { resource: r.to_owned(), message, missing });
        }
    }
    short
}

/// Sum of the requests of `pods` for a resource; CPU in millicores.
pub fn wanted(pod: &Pod, resource: &str) -> i64 {
    if resource == PODS { 1 } else { number(resource, pod::pod_request(pod, resource)) }
}

fn number(resource: &str, amount: Quantity) -> i64 {
    if resource == "cpu" { amount.milli_value() } else { amount.value() }
}

fn matches_affinity(pod: &Pod, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let Some(s) = pod.spec.as_ref() else { return true };
    if s.node_selector.iter().flatten().any(|(k, v)| labels.get(k) != Some(v)) {
        return false;
    }
    let required = s
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|n| n.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|r| r.node_selector_terms.iter().any(|t| term(t).matches(name, labels)))
}

fn term(t: &NodeSelectorTerm) -> kelson_meta::NodeSelectorTerm {
    let read = |list: &Option<Vec<NodeSelectorRequirement>>| -> Vec<LabelSelectorRequirement> {
        let all = list.iter().flatten();
        let one = |r: &NodeSelectorRequirement| LabelSelectorRequirement {
            key: r.key.clone(),
            operator: r.operator.clone(),
            values: r.values.clone().unwrap_or_default(),
        };
        all.map(one).collect()
    };
    kelson_meta::NodeSelectorTerm::new(&read(&t.match_expressions), &read(&t.match_fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(uid: &str, spec: Value) -> Arc<Pod> {
        let mut spec = spec;
        if spec.get("containers").is_none() {
            spec["containers"] = json!([]);
        }
        Arc::new(serde_json::from_value(json!({"metadata":{"name":uid,"uid":uid},"spec":spec})).expect("pod"))
    }

    /// State before the Node was read.
    fn nowhere(runtime: &RuntimeState, pressure: Pressure) -> NodeState<'_> {
        static NO_DEVICES: BTreeSet<String> = BTreeSet::new();
        let (node, devices) = (None, &NO_DEVICES);
        NodeState { allowed_unsafe_sysctls: &[], node, pressure, shuts_down: false, runtime, devices, exclusive: false }
    }

    #[test]
    fn rejections() {
        let node: Node = serde_json::from_value(json!({"metadata":{"name":"n","labels":{"disk":"ssd"}},
            "status":{"allocatable":{"cpu":"2","pods":"2"}}}))
        .expect("node");
        let runtime = RuntimeState::default();
        let pressure = Pressure::default();
        let here = NodeState { node: Some(&node), ..nowhere(&runtime, pressure) };
        let cpu = |n: &str| json!({"containers":[{"name":"a","resources":{"requests":{"cpu":n}}}]});
        let reason = |p: &Pod, others: &[Arc<Pod>]| admit(&here, p, others).map_err(|r| r.rejection().0);
        let port = |ip: &str, protocol: &str, host: i32| {
            let port = json!({"containerPort":80,"hostPort":host,"hostIP":ip,"protocol":protocol});
            json!({"containers":[{"name":"a","ports":[port, {"containerPort":81}]}]})
        };
        let taken = pod("o", port("", "TCP", 8080));
        for (ip, protocol, host, free) in [
            ("", "TCP", 8080, false),
            ("192.0.2.1", "TCP", 8080, false),
            ("", "UDP", 8080, true),
            ("", "TCP", 8081, true),
        ] {
            let got = reason(&pod("a", port(ip, protocol, host)), std::slice::from_ref(&taken));
            assert_eq!(got, if free { Ok(()) } else { Err("NodePorts".to_owned()) }, "{ip} {protocol} {host}");
        }
        let one = [pod("o", port("192.0.2.1", "TCP", 8080))];
        assert_eq!(reason(&pod("a", port("192.0.2.2", "TCP", 8080)), &one), Ok(()));
        let other = pod("o", cpu("1500m"));
        assert_eq!(reason(&pod("a", cpu("500m")), std::slice::from_ref(&other)), Ok(()));
        assert_eq!(reason(&pod("a", cpu("501m")), std::slice::from_ref(&other)), Err("OutOfcpu".into()));
        assert_eq!(reason(&pod("a", json!({})), &[other, pod("b", json!({}))]), Err("OutOfpods".into()));
        assert_eq!(reason(&pod("a", json!({"nodeSelector":{"disk":"hdd"}})), &[]), Err("NodeAffinity".into()));
        let affinity = |op: &str| {
            json!({"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms":[{"matchExpressions":[{"key":"disk","operator":op,"values":["ssd"]}]}]}}}})
        };
        assert_eq!(reason(&pod("a", affinity("In")), &[]), Ok(()));
        assert_eq!(reason(&pod("a", affinity("NotIn")), &[]), Err("NodeAffinity".into()));
        let down = NodeState { shuts_down: true, ..here };
        assert_eq!(admit(&down, &pod("a", json!({})), &[]).expect_err("too late").rejection().0, "NodeShutdown");
        let (_, message) = admit(&here, &pod("a", cpu("3")), &[]).expect_err("too much").rejection();
        assert_eq!(message, "Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000");
    }

    #[test]
    fn a_device_missing_in_the_node_object_is_admitted() {
        let node: Node =
            serde_json::from_value(json!({"status":{"allocatable":{"pods":"9","example.com/gpu":"2"}}})).expect("node");
        let wants = |n: &str| {
            let amounts = json!({"example.com/gpu": n});
            json!({"containers":[{"name":"a","resources":{"requests": amounts, "limits": amounts}}]})
        };
        let (runtime, others) = (RuntimeState::default(), [pod("o", wants("2"))]);
        let here = NodeState { node: Some(&node), ..nowhere(&runtime, Pressure::default()) };
        let reason = |here: &NodeState<'_>| admit(here, &pod("a", wants("1")), &others).map_err(|r| r.rejection().0);
        let offered = BTreeSet::from(["example.com/gpu".to_owned()]);
        assert_eq!(reason(&NodeState { devices: &offered, ..here }), Ok(()), "a third has come");
        assert_eq!(reason(&here), Err("OutOfexample.com/gpu".into()), "what no plugin offers the object says");
    }

    #[test]
    fn promised_groups_are_given_or_the_pod_is_rejected_and_user_namespaces_are_waited_for() {
        let refused = |spec: Value, runtime: &RuntimeState| {
            let pressure = Pressure::default();
            admit(&nowhere(runtime, pressure), &pod("a", spec), &[]).err().map(|r| r.rejection().0)
        };
        let users = json!({"hostUsers": false});
        let groups = json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}});
        let unknown = RuntimeState::default();
        let old = RuntimeState { answered: true, ..Default::default() };
        let new = RuntimeState { answered: true, supplemental_groups_policy: true, ..Default::default() };
        assert_eq!(refused(groups.clone(), &old).as_deref(), Some("SupplementalGroupsPolicyNotSupported"));
        for runtime in [&unknown, &new] {
            assert_eq!(refused(groups.clone(), runtime), None);
        }
        for runtime in [&unknown, &old, &new] {
            assert_eq!(refused(users.clone(), runtime), None, "the sandbox fails, and the same pod tries again");
        }
    }

    #[test]
    fn pressure_keeps_pods_out() {
        let runtime = RuntimeState::default();
        let refused = |spec: Value, memory: bool, disk: bool| {
            let pressure = Pressure { memory, disk, pid: false };
            admit(&nowhere(&runtime, pressure), &pod("a", spec), &[]).err().map(|refusal| {
                let (reason, message) = refusal.rejection();
                assert_eq!(reason, "Evicted");
                message
            })
        };
        let asks = json!({"containers":[{"name":"a","resources":{"requests":{"memory":"1Mi"}}}]});
        let tolerates = json!({"tolerations":[{"key":"node.kubernetes.io/memory-pressure","operator":"Exists"}]});
        assert_eq!(refused(json!({}), false, false), None);
        assert_eq!(refused(json!({}), true, false).as_deref(), Some("The node had condition: [MemoryPressure]. "));
        assert_eq!(refused(asks.clone(), true, false), None);
        assert_eq!(refused(tolerates, true, false), None);
        assert_eq!(
            refused(asks, true, true).as_deref(),
            Some("The node had condition: [MemoryPressure DiskPressure]. ")
        );
        assert_eq!(refused(json!({"priority": 2_000_000_000}), true, true), None);
    }
}
