//! Order of evictions, messages of evicted pods, and pods over their own limits. Pure (upstream: `pkg/kubelet/eviction/helpers.go`,
//! `eviction_manager.go`).
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kelson_meta::Quantity;

use super::tracker::Observations;
use crate::config::thresholds::{Signal, Threshold, amount};
use crate::pod::{self, Role};

/// Usage of one container in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Memory working set.
    pub memory: u64,
    /// Size of the writable layer.
    pub rootfs: u64,
    /// Size of log files.
    pub logs: u64,
}

/// Usage of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// Usage of containers, by name.
    pub containers: BTreeMap<String, ContainerUsage>,
    /// Bytes of each emptyDir on disk, by volume name.
    pub empty_dirs: BTreeMap<String, u64>,
    /// Bytes of the hosts file and the termination messages, which containers can write.
    pub own_files: u64,
    /// Number of processes.
    pub processes: u64,
}

impl PodUsage {
    fn memory(&self) -> u64 {
        self.containers.values().map(|c| c.memory).sum()
    }
    /// Sum of writable layers, logs, emptyDirs and the kubelet's files in bytes.
    pub fn disk(&self) -> u64 {
        let containers: u64 = self.containers.values().map(|c| c.rootfs + c.logs).sum();
        containers + self.empty_dirs.values().sum::<u64>() + self.own_files
    }
}

/// Usage by pod UID.
pub type Usages = HashMap<String, PodUsage>;

fn request(pod: &Pod, resource: &str) -> u64 {
    u64::try_from(pod::pod_request(pod, resource).value()).unwrap_or(0)
}

/// Sorts pods in order of eviction: those that exceed their requests, then by priority, then by how much they exceed.
pub fn rank(pods: &mut [Arc<Pod>], usages: &Usages, signal: Signal) {
    let none = PodUsage::default();
    let of = |p: &Pod| usages.get(pod::uid(p)).unwrap_or(&none);
    let above = |used: u64, asked: u64| i128::from(used) - i128::from(asked);
    pods.sort_by_cached_key(|p| {
        let over = match signal {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => above(of(p).memory(), request(p, "memory")),
            Signal::PidAvailable => return (false, pod::priority(p), Reverse(i128::from(of(p).processes))),
            _ => above(of(p).disk(), request(p, "ephemeral-storage")),
        };
        (over <= 0, pod::priority(p), Reverse(over))
    });
}

/// Message of an eviction because of a resource.
pub fn message(pod: &Pod, usage: Option<&PodUsage>, met: &Threshold, seen: &Observations) -> String {
    let resource = met.signal.resource();
    let mut out = format!("The node was low on resource: {resource}. ");
    if let Some(o) = seen.get(&met.signal) {
        let (value, left) = (amount(met.value.of(o.capacity)), amount(o.available));
        // Writing to a `String` cannot fail.
        let _ = write!(out, "Threshold quantity: {value}, available: {left}. ");
    }
    let Some(usage) = usage else { return out };
    for m in pod::members(pod).filter(|m| m.role != Role::Ephemeral) {
        let Some(c) = usage.containers.get(&m.container.name) else { continue };
        let used = match resource {
            "memory" => c.memory,
            "ephemeral-storage" => c.rootfs + c.logs,
            _ => continue,
        };
        let asked = m.container.resources.as_ref().and_then(|r| r.requests.as_ref()?.get(resource)).map(pod::quantity);
        let asked = asked.unwrap_or_default();
        let used = amount(used);
        if used > asked {
            let name = &m.container.name;
            let _ = write!(
                out,
                "Container {name} was using {used}, request is {asked}, has larger consumption of {resource}. "
            );
        }
    }
    out
}

/// Returns whether the pod has a limit of ephemeral storage that the kernel does not enforce.
pub fn has_storage_limits(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let sized = volumes.filter_map(|v| v.empty_dir.as_ref()).any(|e| {
        e.medium.as_deref().unwrap_or_default().is_empty()
            && e.size_limit.as_ref().map(pod::quantity).is_some_and(|q| q.signum() > 0)
    });
    sized || pod::members(pod).any(|m| pod::limit(&m.container, "ephemeral-storage").is_some())
}

/// Returns the signal and message if the pod exceeds one of its ephemeral storage limits.
pub fn over_storage_limit(pod: &Pod, usage: &PodUsage) -> Option<(&'static str, String)> {
    for v in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let limit = v.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref()).map(pod::quantity);
        let (Some(limit), Some(used)) = (limit.filter(|q| q.signum() > 0), usage.empty_dirs.get(&v.name)) else {
            continue;
        };
        if amount(*used) > limit {
            let message = format!("Usage of EmptyDir volume {:?} exceeds the limit \"{limit}\". ", v.name);
            return Some(("emptydirfs.limit", message));
        }
    }
    let positive = |q: &Quantity| q.signum() > 0;
    if let Some(limit) = pod::pod_limit(pod, "ephemeral-storage").filter(positive)
        && amount(usage.disk()) > limit
    {
        let message = format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ");
        return Some(("ephemeralpodfs.limit", message));
    }
    // Sidecars run as long as ordinary containers, so their limits are enforced too.
    for m in pod::members(pod).filter(|m| matches!(m.role, Role::App | Role::Sidecar)) {
        let name = &m.container.name;
        let used = usage.containers.get(name).map_or(0, |c| c.rootfs + c.logs);
        if let Some(limit) = pod::limit(&m.container, "ephemeral-storage").filter(positive)
            && amount(used) > limit
        {
            let message = format!("Container {name} exceeded its local ephemeral storage limit \"{limit}\". ");
            return Some(("ephemeralcontainerfs.limit", message));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tracker::Observation;
    use super::*;
    use crate::config::thresholds::Amount;
    use serde_json::{Value, json};

    fn pod(name: &str, priority: i32, request: &str) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({"metadata":{"name":name,"uid":name},"spec":{"priority":priority,
                "containers":[{"name":"c","resources":{"requests":{"memory":request,"ephemeral-storage":request}}}]}}))
            .expect("pod"),
        )
    }
    fn uses(memory: u64, rootfs: u64, processes: u64) -> PodUsage {
        let c = ContainerUsage { memory: memory << 20, rootfs: rootfs << 20, logs: 0 };
        PodUsage { containers: BTreeMap::from([("c".into(), c)]), processes, ..Default::default() }
    }

    #[test]
    fn pods_are_ranked_by_exceeding_requests_then_priority_then_amount() {
        let mut pods =
            vec![pod("within", 0, "100Mi"), pod("little", 0, "10Mi"), pod("much", 0, "10Mi"), pod("dear", 9, "1Mi")];
        let usages: Usages = [
            ("within".to_owned(), uses(90, 500, 1)),
            ("little".to_owned(), uses(20, 11, 2)),
            ("much".to_owned(), uses(60, 1, 3)),
            ("dear".to_owned(), uses(500, 2, 400)),
        ]
        .into();
        let mut order = |signal| {
            rank(&mut pods, &usages, signal);
            pods.iter().map(|p| pod::name(p).to_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(order(Signal::MemoryAvailable), "much little dear within");
        assert_eq!(order(Signal::NodeFsAvailable), "within little dear much");
        assert_eq!(order(Signal::PidAvailable), "much little within dear");
    }

    #[test]
    fn messages_are_upstreams() {
        let met = Threshold::hard(Signal::MemoryAvailable, Amount::Absolute(100 << 20));
        let o = Observation { available: 64 << 20, capacity: 1 << 30 };
        let seen = Observations::from([(Signal::MemoryAvailable, o)]);
        let text = message(&pod("p", 0, "10Mi"), Some(&uses(60, 0, 1)), &met, &seen);
        assert_eq!(
            text,
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 64Mi. \
             Container c was using 60Mi, request is 10Mi, has larger consumption of memory. "
        );
    }

    #[test]
    fn limits_of_local_storage() {
        let of =
            |spec: Value| -> Pod { serde_json::from_value(json!({"metadata":{"uid":"u"},"spec":spec})).expect("pod") };
        let sized = of(json!({"containers":[{"name":"c"}],"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1Mi"}}]}));
        let mut usage = uses(0, 3, 1);
        usage.empty_dirs.insert("v".into(), 1 << 20);
        assert!(has_storage_limits(&sized));
        assert_eq!(over_storage_limit(&sized, &usage), None);
        usage.empty_dirs.insert("v".into(), (1 << 20) + 1);
        assert_eq!(
            over_storage_limit(&sized, &usage),
            Some(("emptydirfs.limit", "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ".to_owned()))
        );
        let limited =
            |c: Value| of(json!({"containers":[{"name":"c","resources":{"limits":{"ephemeral-storage":"2Mi"}}}, c]}));
        let both = limited(json!({"name":"d","resources":{"limits":{"ephemeral-storage":"1Mi"}}}));
        assert_eq!(
            over_storage_limit(&both, &usage),
            Some((
                "ephemeralpodfs.limit",
                "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. ".to_owned()
            ))
        );
        assert_eq!(
            over_storage_limit(&limited(json!({"name":"d"})), &usage),
            Some((
                "ephemeralcontainerfs.limit",
                "Container c exceeded its local ephemeral storage limit \"2Mi\". ".to_owned()
            ))
        );
        assert!(!has_storage_limits(&of(json!({"containers":[{"name":"c"}],"volumes":[{"name":"v","emptyDir":{}}]}))));
    }
}
