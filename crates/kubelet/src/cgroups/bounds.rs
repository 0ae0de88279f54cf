//! Limits of a cgroup, as kernel files and as systemd properties. Pure (upstream: `pkg/kubelet/cm/helpers_linux.go`).
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kelson_meta::Quantity;

use super::resources::{PERIOD, SHARES_MIN, page_size, quota, shares, weight};
use crate::pod;
use crate::systemd::units::Property;

/// File of memory that is always protected from reclaim.
pub const MEMORY_MIN: &str = "memory.min";
/// File of memory that is protected from reclaim if possible.
pub const MEMORY_LOW: &str = "memory.low";

/// Limits of one cgroup. A limit of `None` stays unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// CPU weight in shares of cgroup v1.
    pub shares: Option<i64>,
    /// CPU quota in microseconds per period; 0 means no limit.
    pub quota: Option<i64>,
    /// Memory limit in bytes.
    pub memory: Option<i64>,
    /// Limit of processes and threads.
    pub pids: Option<u64>,
    /// Bytes of `memory.min`; cgroup v2 only.
    pub memory_min: Option<i64>,
    /// Bytes of `memory.low`; cgroup v2 only.
    pub memory_low: Option<i64>,
    /// Limits of huge pages in bytes, by page size in bytes.
    pub huge_pages: BTreeMap<i64, i64>,
}

/// Memory requests of the running pods in the two higher QoS classes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassMemory {
    /// Sum of the requests of Guaranteed pods.
    pub guaranteed: i64,
    /// Sum of the requests of Burstable pods.
    pub burstable: i64,
}

impl ClassMemory {
    /// Computes the sums of these pods.
    pub fn of(pods: &[Arc<Pod>]) -> Self {
        let mut sum = Self::default();
        for pod in pods.iter().filter(|p| !pod::is_terminal(p)) {
            let of_class = match pod::qos_class(pod) {
                "Guaranteed" => &mut sum.guaranteed,
                "Burstable" => &mut sum.burstable,
                _ => continue,
            };
            *of_class = of_class.saturating_add(pod::pod_request(pod, "memory").value());
        }
        sum
    }

    /// Memory limits of the Burstable and BestEffort cgroups, if `percent` of the requests of the higher classes is reserved
    /// (`qosReserved`) and all pods may use `allocatable` bytes.
    pub fn limits(self, allocatable: i64, percent: u8) -> (i64, i64) {
        let part = |asked: i64| asked.saturating_mul(i64::from(percent)) / 100;
        let burstable = allocatable.saturating_sub(part(self.guaranteed));
        (burstable, burstable.saturating_sub(part(self.burstable)))
    }
}

/// A value for huge pages that means no limit.
const UNBOUNDED: i64 = 1 << 62;

fn size(resource: &str) -> Option<i64> {
    Some(resource.strip_prefix("hugepages-")?.parse::<Quantity>().ok()?.value())
}

impl Bounds {
    /// Computes the limits of a pod on a machine with these huge page sizes. Sizes that it does not request are limited to 0.
    pub fn of_pod(pod: &Pod, pids: Option<u64>, page_sizes: &[i64]) -> Self {
        let huge_pages = page_sizes.iter().map(|size| {
            let resource = format!("hugepages-{}", Quantity::binary(*size));
            (*size, pod::pod_request(pod, &resource).value())
        });
        Self {
            shares: Some(shares(pod::pod_request(pod, "cpu").milli_value())),
            quota: pod::pod_limit(pod, "cpu").map(|l| quota(l.milli_value())),
            memory: pod::pod_limit(pod, "memory").map(|l| l.value()),
            pids,
            huge_pages: huge_pages.collect(),
            ..Self::default()
        }
    }

    /// Adds memory protection of the pod's request: `memory.min` for a Guaranteed pod, otherwise `memory.low`.
    #[must_use]
    pub fn keeping_memory(self, pod: &Pod) -> Self {
        let asked = Some(pod::pod_request(pod, "memory").value()).filter(|asked| *asked > 0);
        match pod::qos_class(pod) {
            "Guaranteed" => Self { memory_min: asked, ..self },
            _ => Self { memory_low: asked, ..self },
        }
    }

    /// Computes the limits of the Burstable cgroup: its weight is the sum of the pods' CPU requests.
    pub fn of_burstable(pods: &[Arc<Pod>], page_sizes: &[i64]) -> Self {
        let asked = pods.iter().filter(|p| pod::qos_class(p) == "Burstable" && !pod::is_terminal(p));
        let milli = asked.fold(0i64, |sum, p| sum.saturating_add(pod::pod_request(p, "cpu").milli_value()));
        Self { shares: Some(shares(milli)), ..Self::unbounded(page_sizes) }
    }

    /// Computes the limits of the BestEffort cgroup.
    pub fn of_best_effort(page_sizes: &[i64]) -> Self {
        Self { shares: Some(SHARES_MIN), ..Self::unbounded(page_sizes) }
    }

    fn unbounded(page_sizes: &[i64]) -> Self {
        Self { huge_pages: page_sizes.iter().map(|size| (*size, UNBOUNDED)).collect(), ..Self::default() }
    }

    /// Converts amounts of the node by resource; only CPU if `only_cpu`.
    pub fn of_amounts(amounts: &BTreeMap<String, Quantity>, only_cpu: bool) -> Self {
        let cpu = Self { shares: amounts.get("cpu").map(|q| shares(q.milli_value())), ..Self::default() };
        if only_cpu {
            return cpu;
        }
        Self {
            memory: amounts.get("memory").map(|q| q.value()),
            pids: amounts.get("pid").and_then(|q| u64::try_from(q.value()).ok()),
            huge_pages: amounts.iter().filter_map(|(name, q)| Some((size(name)?, q.value()))).collect(),
            ..cpu
        }
    }

    /// Returns the kernel files and values. On cgroup v1 each file has a controller.
    pub fn files(&self, unified: bool) -> Vec<CgroupFile> {
        let mut out = Vec::new();
        let mut add = |controller: &'static str, name: &str, value: String| {
            out.push(CgroupFile { controller, name: name.to_owned(), value });
        };
        if let Some(n) = self.shares {
            let (name, n) = if unified { ("cpu.weight", weight(n)) } else { ("cpu.shares", n) };
            add("cpu", name, n.to_string());
        }
        match self.quota {
            Some(n) if unified => {
                let bound = if n == 0 { "max".to_owned() } else { n.to_string() };
                add("cpu", "cpu.max", format!("{bound} {PERIOD}"));
            }
            Some(n) => {
                add("cpu", "cpu.cfs_period_us", PERIOD.to_string());
                add("cpu", "cpu.cfs_quota_us", if n == 0 { -1 } else { n }.to_string());
            }
            None => {}
        }
        if let Some(n) = self.memory {
            add("memory", if unified { "memory.max" } else { "memory.limit_in_bytes" }, n.to_string());
        }
        for (name, n) in [(MEMORY_MIN, self.memory_min), (MEMORY_LOW, self.memory_low)] {
            if let Some(n) = n.filter(|_| unified) {
                add("memory", name, n.to_string());
            }
        }
        if let Some(n) = self.pids {
            add("pids", "pids.max", n.to_string());
        }
        for (size, n) in &self.huge_pages {
            let last = if unified { "max" } else { "limit_in_bytes" };
            add("hugetlb", &format!("hugetlb.{}.{last}", page_size(*size)), n.to_string());
        }
        out
    }

    /// Returns the systemd properties. systemd has none for huge pages.
    pub fn properties(&self, unified: bool) -> Vec<Property> {
        let number = |n: i64| u64::try_from(n).unwrap_or(u64::MAX);
        let mut out: Vec<Property> = Vec::new();
        if let Some(n) = self.shares {
            out.push(if unified { ("CPUWeight", number(weight(n))) } else { ("CPUShares", number(n)) });
        }
        if let Some(n) = self.quota {
            // Converted to a quota per second and rounded up to systemd's resolution of 10 ms.
            let second = number(n).saturating_mul(1_000_000 / PERIOD.unsigned_abs()).next_multiple_of(10_000);
            out.push(("CPUQuotaPerSecUSec", if n == 0 { u64::MAX } else { second }));
        }
        if let Some(n) = self.memory {
            out.push((if unified { "MemoryMax" } else { "MemoryLimit" }, number(n)));
        }
        for (name, n) in [("MemoryMin", self.memory_min), ("MemoryLow", self.memory_low)] {
            out.extend(n.filter(|_| unified).map(|n| (name, number(n))));
        }
        out.extend(self.pids.map(|n| ("TasksMax", n.max(1))));
        out
    }
}

/// A file of a cgroup and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupFile {
    /// The file's controller on cgroup v1.
    pub controller: &'static str,
    /// Name of the file in the cgroup's directory.
    pub name: String,
    /// The value to write.
    pub value: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(resources: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": {"containers": [
            {"name": "a", "resources": resources}]}}))
        .expect("a pod")
    }

    fn text(files: &[CgroupFile]) -> String {
        files.iter().map(|f| format!("{}/{}={} ", f.controller, f.name, f.value)).collect()
    }

    #[test]
    fn pods_by_class() {
        const PAGES: &[i64] = &[2 << 20, 1 << 30];
        let none = "hugetlb/hugetlb.2MB.max=0 hugetlb/hugetlb.1GB.max=0 ";
        for (resources, wanted) in [
            (json!({}), format!("cpu/cpu.weight=1 {none}")),
            (json!({"requests": {"cpu": "1"}}), format!("cpu/cpu.weight=39 {none}")),
            (
                json!({"limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "500m", "memory": "64Mi"}}),
                format!("cpu/cpu.weight=20 cpu/cpu.max=150000 100000 memory/memory.max=67108864 {none}"),
            ),
            (
                json!({"limits": {"hugepages-2Mi": "6Mi"}, "requests": {"hugepages-2Mi": "6Mi", "cpu": "1m"}}),
                "cpu/cpu.weight=1 hugetlb/hugetlb.2MB.max=6291456 hugetlb/hugetlb.1GB.max=0 ".to_owned(),
            ),
        ] {
            assert_eq!(text(&Bounds::of_pod(&pod(resources.clone()), None, PAGES).files(true)), wanted, "{resources}");
        }
        let split = Bounds::of_pod(&pod(json!({"limits": {"cpu": "2", "memory": "1Gi"}})), Some(9), &[2 << 20]);
        assert_eq!(
            text(&split.files(false)),
            "cpu/cpu.shares=2048 cpu/cpu.cfs_period_us=100000 cpu/cpu.cfs_quota_us=200000 \
             memory/memory.limit_in_bytes=1073741824 pids/pids.max=9 hugetlb/hugetlb.2MB.limit_in_bytes=0 "
        );
    }

    #[test]
    fn limits_as_systemd_properties() {
        let bounds = Bounds::of_pod(&pod(json!({"limits": {"cpu": "1234m", "memory": "64Mi"}})), Some(100), &[2 << 20]);
        let memory = 64 << 20;
        assert_eq!(
            bounds.properties(true),
            [("CPUWeight", 49), ("CPUQuotaPerSecUSec", 1_240_000), ("MemoryMax", memory), ("TasksMax", 100)]
        );
        assert_eq!(bounds.properties(false)[0], ("CPUShares", 1263));
        assert_eq!(bounds.properties(false)[2], ("MemoryLimit", memory));
        let free = Bounds { quota: Some(0), pids: Some(0), ..Bounds::default() };
        assert_eq!(free.properties(true), [("CPUQuotaPerSecUSec", u64::MAX), ("TasksMax", 1)]);
        assert!(Bounds::default().properties(true).is_empty());
    }

    #[test]
    fn memory_protection_and_reserved_memory() {
        const MIB: i64 = 1 << 20;
        let guaranteed = Arc::new(pod(json!({"limits": {"cpu": "1", "memory": "64Mi"}})));
        let burstable = Arc::new(pod(json!({"requests": {"memory": "32Mi"}})));
        let kept = |pod: &Pod| Bounds::default().keeping_memory(pod);
        assert_eq!(text(&kept(&guaranteed).files(true)), "memory/memory.min=67108864 ");
        assert_eq!(text(&kept(&burstable).files(true)), "memory/memory.low=33554432 ");
        assert_eq!(kept(&burstable).properties(true), [("MemoryLow", 32 << 20)]);
        assert_eq!(kept(&guaranteed).properties(true), [("MemoryMin", 64 << 20)]);
        assert!(kept(&guaranteed).files(false).is_empty() && kept(&guaranteed).properties(false).is_empty());
        assert_eq!(kept(&pod(json!({}))), Bounds::default());
        let mut over = Pod::clone(&guaranteed);
        over.status = serde_json::from_value(json!({"phase": "Failed"})).expect("a status");
        let asked = ClassMemory::of(&[guaranteed, burstable, Arc::new(over), Arc::new(pod(json!({})))]);
        assert_eq!(asked, ClassMemory { guaranteed: 64 * MIB, burstable: 32 * MIB });
        assert_eq!(asked.limits(1000 * MIB, 50), (968 * MIB, 952 * MIB));
        assert_eq!(asked.limits(1000 * MIB, 0), (1000 * MIB, 1000 * MIB));
    }

    #[test]
    fn limits_of_qos_classes_and_the_node() {
        let asks = |cpu: &str| Arc::new(pod(json!({"requests": {"cpu": cpu}})));
        let mut over = pod(json!({"requests": {"cpu": "8"}}));
        over.status = serde_json::from_value(json!({"phase": "Succeeded"})).expect("a status");
        let guaranteed = Arc::new(pod(json!({"limits": {"cpu": "4", "memory": "1Gi"}})));
        let pods = [asks("1500m"), asks("500m"), Arc::new(over), guaranteed, Arc::new(pod(json!({})))];
        assert_eq!(Bounds::of_burstable(&pods, &[]).shares, Some(2048));
        assert_eq!(Bounds::of_burstable(&[], &[]).shares, Some(2));
        assert_eq!(
            text(&Bounds::of_best_effort(&[2 << 20]).files(true)),
            "cpu/cpu.weight=1 hugetlb/hugetlb.2MB.max=4611686018427387904 "
        );
        let amount = |name: &str, q: &str| (name.to_owned(), q.parse::<Quantity>().expect("a quantity"));
        let node =
            [amount("cpu", "3500m"), amount("memory", "4Gi"), amount("hugepages-2Mi", "8Mi"), amount("pid", "7")];
        let node: BTreeMap<String, Quantity> = node.into();
        assert_eq!(
            text(&Bounds::of_amounts(&node, false).files(false)),
            "cpu/cpu.shares=3584 memory/memory.limit_in_bytes=4294967296 pids/pids.max=7 \
             hugetlb/hugetlb.2MB.limit_in_bytes=8388608 "
        );
        assert_eq!(text(&Bounds::of_amounts(&node, true).files(false)), "cpu/cpu.shares=3584 ");
    }
}
