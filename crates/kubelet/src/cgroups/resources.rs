//! Resources of containers and pods in the kernel's units (upstream: `pkg/kubelet/cm`, `pkg/kubelet/qos`).
use k8s_openapi::api::core::v1::{Container, Pod};
use kelson_cri::proto as cri;
use serde::{Deserialize, Serialize};

use crate::pod::{self, Role};

/// Period of CPU quotas in microseconds.
pub const PERIOD: i64 = 100_000;
/// Minimum CPU quota of the kernel in microseconds.
const QUOTA_MIN: i64 = 1000;
/// Minimum CPU shares of the kernel.
pub const SHARES_MIN: i64 = 2;
/// Maximum CPU shares of the kernel.
const SHARES_MAX: i64 = 262_144;
/// OOM score adjustment of containers in Guaranteed pods.
const OOM_GUARANTEED: i64 = -997;
/// OOM score adjustment of containers in BestEffort pods.
const OOM_BEST_EFFORT: i64 = 1000;

/// Converts millicores to CPU shares.
pub fn shares(milli: i64) -> i64 {
    if milli == 0 { SHARES_MIN } else { (milli.saturating_mul(1024) / 1000).clamp(SHARES_MIN, SHARES_MAX) }
}
/// Converts millicores to a quota per period; 0 means no limit.
pub fn quota(milli: i64) -> i64 {
    if milli == 0 { 0 } else { (milli.saturating_mul(PERIOD) / 1000).max(QUOTA_MIN) }
}
/// Converts shares (v1) to weight (v2), with the same formula as runc.
pub fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(SHARES_MIN, SHARES_MAX) - 2) * 9999 / 262_142
}

/// Computes a container's OOM score adjustment (upstream: `pkg/kubelet/qos/policy.go`).
pub fn oom_score(pod: &Pod, role: Role, c: &Container, machine_memory: i64) -> i64 {
    let priority = pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
    if priority >= 2_000_000_000 {
        return OOM_GUARANTEED;
    }
    match pod::qos_class(pod) {
        "Guaranteed" => return OOM_GUARANTEED,
        "BestEffort" => return OOM_BEST_EFFORT,
        _ => {}
    }
    let score = |request: i64| {
        let per_mille = i64::try_from(1000 * i128::from(request) / i128::from(machine_memory.max(1)));
        (1000 - per_mille.unwrap_or(1000)).clamp(3, 999)
    };
    let shared = shared_memory_each(pod);
    let of = |c: &Container| pod::request(c, "memory").map_or(0, |q| q.value()).saturating_add(shared);
    let own = score(of(c));
    if role != Role::Sidecar {
        return own;
    }
    // A sidecar must not be killed before the containers that it serves.
    let apps = pod::members(pod).filter(|m| m.role == Role::App).map(|m| score(of(&m.container))).min();
    own.min(apps.unwrap_or(own))
}

/// The part of the pod-level memory request that no container requests, divided equally among the containers.
fn shared_memory_each(pod: &Pod) -> i64 {
    let Some(spec) = &pod.spec else { return 0 };
    let whole = spec.resources.as_ref().and_then(|r| r.requests.as_ref()).and_then(|r| r.get("memory"));
    let Some(whole) = whole.map(|q| pod::quantity(q).value()).filter(|n| *n > 0) else { return 0 };
    let mut containers = pod.clone();
    if let Some(spec) = &mut containers.spec {
        (spec.resources, spec.overhead) = (None, None);
    }
    let count = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    let left = whole.saturating_sub(pod::pod_request(&containers, "memory").value());
    left / i64::try_from(count.max(1)).unwrap_or(i64::MAX)
}

/// Memory request of a container in bytes; its limit if the request is unset.
pub fn memory_request(c: &Container) -> i64 {
    pod::request(c, "memory").map_or(0, |q| q.value())
}

/// Limits of a container in the kernel's units; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// CPU weight in shares of cgroup v1.
    pub cpu_shares: i64,
    /// CPU quota in microseconds per period; -1 means none, because the container has exclusive CPUs.
    pub cpu_quota: i64,
    /// Memory limit in bytes.
    pub memory: i64,
}

impl Limits {
    /// Limits of a container's spec. Without a limit, the pod-level limit applies, so that the container's cgroup shows what it may use. A
    /// container with a limit but no request requests its limit.
    pub fn of(pod: &Pod, c: &Container) -> Self {
        let limit = |resource: &str| {
            pod::limit(c, resource).filter(|l| !l.is_zero()).or_else(|| pod::shared_limit(pod, resource))
        };
        let cpu = limit("cpu");
        Self {
            cpu_shares: shares(pod::request(c, "cpu").or(cpu).map_or(0, |q| q.milli_value())),
            cpu_quota: quota(cpu.map_or(0, |q| q.milli_value())),
            memory: limit("memory").map_or(0, |q| q.value()),
        }
    }

    /// Prepares a comparison with `wanted`: a container with exclusive CPUs counts as having its CPU limit.
    #[must_use]
    pub fn beside(self, wanted: Self) -> Self {
        Self { cpu_quota: if self.cpu_quota < 0 { wanted.cpu_quota } else { self.cpu_quota }, ..self }
    }

    /// Serializes for an annotation.
    pub fn json(self) -> String {
        serde_json::to_string(&self).unwrap_or_default()
    }

    /// Converts the limits that the runtime reports.
    pub fn from_runtime(r: &cri::LinuxContainerResources) -> Self {
        // A quota without a period has the default period; any other period is converted to it.
        let quota = match r.cpu_period {
            _ if r.cpu_quota < 0 => -1,
            0 | PERIOD => r.cpu_quota,
            period => r.cpu_quota.saturating_mul(PERIOD) / period,
        };
        Self { cpu_shares: r.cpu_shares, cpu_quota: quota, memory: r.memory_limit_in_bytes.max(0) }
    }
}

/// Builds a container's resources for CRI.
pub fn container_resources(
    pod: &Pod,
    role: Role,
    c: &Container,
    machine_memory: i64,
    may_lower_oom: bool,
) -> cri::LinuxContainerResources {
    let limits = Limits::of(pod, c);
    let mut oom = oom_score(pod, role, c, machine_memory);
    if !may_lower_oom {
        // Without CAP_SYS_RESOURCE the kernel rejects negative scores, and the container would not start.
        oom = oom.max(0);
    }
    let hugepages = c.resources.iter().flat_map(|r| r.limits.iter().flatten()).filter_map(|(k, q)| {
        let size = k.strip_prefix("hugepages-")?;
        let bytes: kelson_meta::Quantity = size.parse().ok()?;
        let limit = u64::try_from(pod::quantity(q).value()).ok()?;
        Some(cri::HugepageLimit { page_size: page_size(bytes.value()), limit })
    });
    cri::LinuxContainerResources {
        cpu_period: if limits.cpu_quota > 0 { PERIOD } else { 0 },
        cpu_quota: limits.cpu_quota,
        cpu_shares: limits.cpu_shares,
        memory_limit_in_bytes: limits.memory,
        oom_score_adj: oom,
        hugepage_limits: hugepages.collect(),
        ..Default::default()
    }
}

/// Removes the CPU quota.
pub fn unbound_cpu(resources: &mut cri::LinuxContainerResources) {
    (resources.cpu_period, resources.cpu_quota) = (PERIOD, -1);
}

/// Formats a huge page size as the kernel does in file names.
pub fn page_size(bytes: i64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{}GB", b >> 30),
        b if b >= 1 << 20 => format!("{}MB", b >> 20),
        b => format!("{}KB", b >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn conversions() {
        for (milli, want) in [(0, 2), (1, 2), (100, 102), (1000, 1024), (500_000, 262_144)] {
            assert_eq!(shares(milli), want);
        }
        for (milli, want) in [(0, 0), (1, 1000), (100, 10_000), (2500, 250_000)] {
            assert_eq!(quota(milli), want);
        }
        assert_eq!((weight(2), weight(1024), weight(262_144)), (1, 39, 10_000));
    }

    #[test]
    fn pod_level_resources_are_shared_by_containers() {
        let gib = 1i64 << 30;
        let whole = json!({"requests":{"cpu":"1","memory":"3Gi"},"limits":{"cpu":"2","memory":"4Gi"}});
        let own = json!({"requests":{"cpu":"100m","memory":"1Gi"},"limits":{"memory":"1Gi"}});
        let pod: Pod = serde_json::from_value(json!({"spec":{"resources":whole,
            "containers":[{"name":"a","resources":own},{"name":"b"}]}}))
        .expect("pod");
        let [a, b] = &pod.spec.as_ref().expect("spec").containers[..] else { panic!("two") };
        assert_eq!(Limits::of(&pod, a), Limits { cpu_shares: 102, cpu_quota: 200_000, memory: gib });
        assert_eq!(Limits::of(&pod, b), Limits { cpu_shares: 2048, cpu_quota: 200_000, memory: 4 * gib });
        // Two of the three GiB are not requested by any container.
        let score = |c| oom_score(&pod, Role::App, c, 10 * gib);
        assert_eq!((score(a), score(b)), (800, 900));
    }

    #[test]
    fn oom_scores() {
        let gib = 1i64 << 30;
        for (resources, want) in [
            (json!({}), 1000),
            (json!({"limits":{"cpu":"1","memory":"1Gi"}}), -997),
            (json!({"requests":{"memory":"1Gi"}}), 750),
            (json!({"requests":{"memory":"4Gi"}}), 3),
            (json!({"requests":{"cpu":"1"}}), 999),
        ] {
            let p: Pod = serde_json::from_value(json!({"spec":{"containers":[{"name":"a","resources":resources}]}}))
                .expect("pod");
            let c = &p.spec.as_ref().expect("spec").containers[0];
            assert_eq!(oom_score(&p, Role::App, c, 4 * gib), want);
            assert!(container_resources(&p, Role::App, c, 4 * gib, false).oom_score_adj >= 0);
        }
    }
}
