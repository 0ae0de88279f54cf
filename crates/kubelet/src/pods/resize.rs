//! In-place resize (KEP-1287): the resources that are granted to a pod on this node, as opposed to those that its spec requests. A resize
//! that does not fit is deferred until other pods free resources. Pure; the manager keeps the grants and the worker applies them (upstream:
//! `pkg/kubelet/allocation`).
use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Node, Pod, ResourceRequirements};
use kelson_meta::Quantity;
use serde_json::json;

use super::admit;
use crate::config::placement::PlacementConfig;
use crate::pod::{self, Role};

/// Why exclusive resources cannot be resized, as labels of the metric.
const OWN_CPUS: &str = "guaranteed_pod_cpu_manager_static_policy";
const OWN_MEMORY: &str = "guaranteed_pod_memory_manager_static_policy";

/// Why a pod does not get the resources of its spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizePending {
    /// `Deferred` while other pods use the resources, `Infeasible` if this node can never grant them.
    pub reason: &'static str,
    /// The message, in upstream's words.
    pub message: String,
    /// Why the resize is infeasible, as the label of `kubelet_pod_infeasible_resizes_total`; empty if deferred.
    pub detail: &'static str,
}

/// A pod with the resources that it may use on this node.
#[derive(Clone, Debug)]
pub struct Granted {
    /// Newest state of the API, with the granted resources in place of the requested ones.
    pub pod: Arc<Pod>,
    /// Why the pod does not have the resources of its spec.
    pub deferred: Option<ResizePending>,
}

/// Computes the grant of a pod that has the resources of `known` and requests those of `wanted`. Exclusive CPUs and memory stay as the
/// policies in `placement` require, and resources in `devices` do not change.
pub fn grant(
    (node, placement, devices): (Option<&Node>, &PlacementConfig, &BTreeSet<String>),
    others: &[Arc<Pod>],
    known: &Pod,
    wanted: &Arc<Pod>,
) -> Granted {
    if same_resources(known, wanted) || pod::is_terminal(wanted) || pod::is_deleted(wanted) {
        let pod = if same_resources(known, wanted) { Arc::clone(wanted) } else { with_resources_of(wanted, known) };
        return Granted { pod, deferred: None };
    }
    let pending = |reason, message, detail| Granted {
        pod: with_resources_of(wanted, known),
        deferred: Some(ResizePending { reason, message, detail }),
    };
    if let Some((message, detail)) = infeasible(placement, known, wanted) {
        return pending("Infeasible", message, detail);
    }
    match node.map_or(Ok(()), |node| admit::fits(wanted, others, node, devices)) {
        Ok(()) => Granted { pod: Arc::clone(wanted), deferred: None },
        Err(short) => pending("Deferred", short.message, ""),
    }
}

/// Returns why a guaranteed pod cannot be resized: exclusive resources do not change while it runs.
fn infeasible(placement: &PlacementConfig, known: &Pod, wanted: &Pod) -> Option<(String, &'static str)> {
    if pod::qos_class(wanted) != "Guaranteed" {
        return None;
    }
    let changes = |resource: &str| {
        let of = |p: &Pod| -> Vec<Option<Quantity>> {
            let members = pod::members(p).filter(|m| matches!(m.role, Role::App | Role::Sidecar));
            members.map(|m| pod::request(&m.container, resource)).collect()
        };
        of(known) != of(wanted)
    };
    let policies = [
        (placement.has_own_cpus, "cpu", "CPU Manager policy \"static\"", OWN_CPUS),
        (placement.has_own_memory, "memory", "Memory Manager policy \"Static\"", OWN_MEMORY),
    ];
    let first = policies.into_iter().find(|(is_on, resource, ..)| *is_on && changes(resource));
    first.map(|(.., policy, detail)| (format!("Resize is infeasible for Guaranteed Pods alongside {policy}"), detail))
}

/// Restores the grant of a pod of an earlier kubelet from the status in the API.
pub fn remembered(pod: &Arc<Pod>) -> Arc<Pod> {
    let mut known = (**pod).clone();
    let Some(status) = known.status.clone() else { return Arc::clone(pod) };
    let statuses = || {
        let all = [&status.container_statuses, &status.init_container_statuses];
        all.into_iter().flat_map(|l| l.iter().flatten())
    };
    for c in resizable(&mut known) {
        let Some(s) = statuses().find(|s| s.name == c.name && s.allocated_resources.is_some()) else { continue };
        let resources = c.resources.get_or_insert_default();
        if resources.requests == s.allocated_resources {
            continue;
        }
        resources.requests = s.allocated_resources.clone();
        resources.limits = s.resources.as_ref().and_then(|r| r.limits.clone());
    }
    if same_resources(&known, pod) { Arc::clone(pod) } else { Arc::new(known) }
}

fn resizable(pod: &mut Pod) -> impl Iterator<Item = &mut Container> {
    pod.spec.iter_mut().flat_map(|s| s.containers.iter_mut().chain(s.init_containers.iter_mut().flatten()))
}

/// Returns whether two states of a pod request the same resources.
pub fn same_resources(a: &Pod, b: &Pod) -> bool {
    let whole = |p: &Pod| p.spec.as_ref().and_then(|s| s.resources.clone());
    let of = |p: &Pod| -> Vec<(String, Option<ResourceRequirements>)> {
        let all = p.spec.iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
        all.map(|c| (c.name.clone(), c.resources.clone())).collect()
    };
    whole(a) == whole(b) && of(a) == of(b)
}

fn with_resources_of(wanted: &Pod, known: &Pod) -> Arc<Pod> {
    let mut pod = wanted.clone();
    let mut before = known.clone();
    for c in resizable(&mut pod) {
        if let Some(old) = resizable(&mut before).find(|old| old.name == c.name) {
            c.resources = old.resources.take();
        }
    }
    if let (Some(spec), Some(old)) = (pod.spec.as_mut(), before.spec) {
        spec.resources = old.resources;
    }
    Arc::new(pod)
}

/// Message of an event about a resize: what was done and the resources, in the JSON form that upstream's tools parse.
pub fn message(what: &str, pod: &Pod, error: &str) -> String {
    let list = |of: &[Container]| -> Vec<serde_json::Value> {
        of.iter().map(|c| json!({"name": c.name, "resources": c.resources.clone().unwrap_or_default()})).collect()
    };
    let spec = pod.spec.as_ref();
    let mut about = serde_json::Map::new();
    let inits = spec.and_then(|s| s.init_containers.as_deref()).unwrap_or_default();
    if !inits.is_empty() {
        about.insert("initContainers".into(), list(inits).into());
    }
    about.insert("containers".into(), list(spec.map_or(&[], |s| &s.containers)).into());
    about.insert("generation".into(), pod.metadata.generation.unwrap_or(0).into());
    if !error.is_empty() {
        about.insert("error".into(), error.into());
    }
    format!("Pod resize {what}: {}", serde_json::Value::Object(about))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, cpu: &str) -> Arc<Pod> {
        let pod = json!({"metadata":{"name":uid,"uid":uid,"generation":2},"spec":{"containers":
            [{"name":"a","resources":{"requests":{"cpu":cpu},"limits":{"cpu":cpu}}},{"name":"b"}]}});
        Arc::new(serde_json::from_value(pod).expect("pod"))
    }

    fn cpu(pod: &Pod) -> String {
        let c = &pod.spec.as_ref().expect("spec").containers[0];
        c.resources.as_ref().and_then(|r| r.limits.as_ref()).expect("limits")["cpu"].0.clone()
    }

    #[test]
    fn a_resize_that_fits_is_granted_and_others_are_deferred() {
        let node: Node =
            serde_json::from_value(json!({"status":{"allocatable":{"cpu":"2","pods":"10"}}})).expect("node");
        let (others, none, no_devices) = ([pod("o", "1")], PlacementConfig::default(), BTreeSet::new());
        for (from, to, granted, deferred) in [
            ("500m", "500m", "500m", None),
            ("500m", "1", "1", None),
            ("500m", "100m", "100m", None),
            (
                "500m",
                "1500m",
                "500m",
                Some("Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000"),
            ),
            // A request larger than the node is deferred and not infeasible, because the node may grow.
            (
                "500m",
                "8",
                "500m",
                Some("Node didn't have enough resource: cpu, requested: 8000, used: 1000, capacity: 2000"),
            ),
        ] {
            let got = grant((Some(&node), &none, &no_devices), &others, &pod("p", from), &pod("p", to));
            let why = got.deferred.as_ref().map(|p| p.message.as_str());
            assert_eq!((cpu(&got.pod).as_str(), why), (granted, deferred), "{from} -> {to}");
            assert_eq!(got.pod.metadata.generation, Some(2));
        }
        // The pod's own current resources do not count against it.
        let got = grant((Some(&node), &none, &no_devices), &[pod("p", "2")], &pod("p", "2"), &pod("p", "1500m"));
        assert_eq!((cpu(&got.pod).as_str(), got.deferred), ("1500m", None));
        // A terminating pod gets no more resources.
        let mut ending = (*pod("p", "8")).clone();
        ending.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("time"));
        let got = grant((Some(&node), &none, &no_devices), &[], &pod("p", "1"), &Arc::new(ending));
        assert_eq!((cpu(&got.pod).as_str(), got.deferred), ("1", None));
    }

    #[test]
    fn exclusive_resources_are_not_resized() {
        let of = |cpu: &str, memory: &str| -> Arc<Pod> {
            let resources = json!({"cpu": cpu, "memory": memory});
            let pod = json!({"metadata":{"name":"p","uid":"p"},"spec":{"containers":
                [{"name":"a","resources":{"requests":resources,"limits":resources}}]}});
            Arc::new(serde_json::from_value(pod).expect("pod"))
        };
        let cpus = PlacementConfig { has_own_cpus: true, ..PlacementConfig::default() };
        let memory = PlacementConfig { has_own_memory: true, ..PlacementConfig::default() };
        for (policy, wanted, expected) in [
            (
                &cpus,
                of("2", "1Gi"),
                Some("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""),
            ),
            (&cpus, of("1", "2Gi"), None),
            (&memory, of("2", "1Gi"), None),
            (
                &memory,
                of("1", "2Gi"),
                Some("Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\""),
            ),
        ] {
            let got = grant((None, policy, &BTreeSet::new()), &[], &of("1", "1Gi"), &wanted);
            assert_eq!(
                got.deferred.as_ref().map(|p| (p.reason, p.message.as_str())),
                expected.map(|e| ("Infeasible", e))
            );
        }
        let burstable = grant((None, &cpus, &BTreeSet::new()), &[], &pod("p", "1"), &pod("p", "2"));
        assert_eq!(burstable.deferred, None, "who has nothing to itself may change");
    }

    #[test]
    fn the_status_remembers_a_grant() {
        let mut wanted = (*pod("p", "4")).clone();
        wanted.status = serde_json::from_value(json!({"containerStatuses":[{"name":"a","image":"","imageID":"","ready":true,
            "restartCount":0,"allocatedResources":{"cpu":"1"},"resources":{"limits":{"cpu":"1"},"requests":{"cpu":"1"}}}]}))
        .expect("status");
        let wanted = Arc::new(wanted);
        assert_eq!(cpu(&remembered(&wanted)), "1");
        assert_eq!(cpu(&remembered(&pod("p", "4"))), "4", "without a status the spec is what it was granted");
        assert_eq!(
            message("started", &pod("p", "1"), ""),
            r#"Pod resize started: {"containers":[{"name":"a","resources":{"limits":{"cpu":"1"},"requests":{"cpu":"1"}}},{"name":"b","resources":{}}],"generation":2}"#
        );
    }
}
