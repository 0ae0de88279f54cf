//! Facts about the machine, read from kernel files: capacity, identity, memory, processes.
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files, read in the lane for files")]

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::{NodeSwapStatus, NodeSystemInfo};
use kelson_meta::Quantity;

use super::disk::DiskUsage;
use crate::cgroups::memory::MemoryRules;
use crate::cgroups::swap::{SwapControl, SwapRules};
use crate::config::Config;
use crate::config::cgroups::SwapBehavior;
use crate::config::thresholds::{Signal, Threshold, amount};

/// Facts about the node that the downward API shows.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// Name of the node, also its label `kubernetes.io/hostname`.
    pub name: String,
    /// Addresses of the node, the primary one first.
    pub host_ips: Vec<String>,
    /// Allocatable amounts by resource, which are the defaults of missing limits.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Memory of the machine in bytes.
    pub machine_memory: i64,
}

/// Memory of the machine in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Amount of memory.
    pub total: i64,
    /// Memory available without swapping.
    pub available: i64,
    /// Amount of swap.
    pub swap: i64,
    /// Amount of free swap.
    pub swap_free: i64,
}

/// Parses the content of `/proc/meminfo`.
pub fn memory(text: &str) -> Memory {
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse::<i64>().ok().map(|kib| kib * 1024)
    };
    let all = |name| field(name).unwrap_or(0);
    Memory {
        total: all("MemTotal"),
        available: all("MemAvailable"),
        swap: all("SwapTotal"),
        swap_free: all("SwapFree"),
    }
}

/// Reads the memory of this machine.
pub fn machine_memory() -> Memory {
    memory(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

/// Returns the swap rules for containers of this machine.
pub fn swap_rules(behavior: SwapBehavior) -> SwapRules {
    let memory = machine_memory();
    let control = SwapControl::detect(Path::new("/sys/fs/cgroup"), &file("/proc/self/cgroup"));
    SwapRules { behavior, control, memory: memory.total, swap: memory.swap }
}

/// Returns the memory rules for containers of this machine.
///
/// # Errors
/// The machine does not support the configuration.
pub fn memory_rules(config: &Config) -> Result<MemoryRules, String> {
    let for_pods = for_pods(&capacity(config), &config.reserved());
    let allocatable = for_pods.get("memory").map_or(0, |q| q.value());
    MemoryRules::detect(Path::new("/sys/fs/cgroup"), config.memory, allocatable)
}

/// Maximum number of pods.
fn pods_max(config: &Config, cpus: i64) -> i64 {
    let max = i64::from(config.max_pods);
    config.pods_per_core.map_or(max, |each| max.min(i64::from(each).saturating_mul(cpus)))
}

/// Computes the capacity by resource.
pub fn capacity(config: &Config) -> BTreeMap<String, Quantity> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| i64::try_from(n.get()).unwrap_or(1));
    let mut out = BTreeMap::from([
        ("cpu".to_owned(), Quantity::from_i64(cpus)),
        ("memory".to_owned(), Quantity::binary(machine_memory().total)),
        ("pods".to_owned(), Quantity::from_i64(pods_max(config, cpus))),
    ]);
    if let Some(u) = DiskUsage::of(&config.root_dir).filter(|_| config.isolates_storage) {
        out.insert("ephemeral-storage".into(), Quantity::binary(i64::try_from(u.capacity).unwrap_or(i64::MAX)));
    }
    for entry in std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let kib =
            name.strip_prefix("hugepages-").and_then(|n| n.strip_suffix("kB")).and_then(|n| n.parse::<i64>().ok());
        let pages =
            std::fs::read_to_string(entry.path().join("nr_hugepages")).ok().and_then(|n| n.trim().parse::<i64>().ok());
        if let (Some(kib), Some(pages)) = (kib, pages) {
            let size = Quantity::binary(kib * 1024);
            out.insert(format!("hugepages-{size}"), Quantity::binary(pages * kib * 1024));
        }
    }
    out
}

/// Capacity without reservations and hard eviction thresholds.
pub fn allocatable(
    capacity: &BTreeMap<String, Quantity>,
    reserved: &BTreeMap<String, Quantity>,
    thresholds: &[Threshold],
) -> BTreeMap<String, Quantity> {
    let mut out = less(capacity, reserved);
    for t in thresholds.iter().filter(|t| t.is_hard()) {
        let name = match t.signal {
            Signal::MemoryAvailable => "memory",
            Signal::NodeFsAvailable => "ephemeral-storage",
            _ => continue,
        };
        let all = capacity.get(name).and_then(|q| u64::try_from(q.value()).ok()).unwrap_or(0);
        if let Some(left) = out.get_mut(name) {
            *left = positive(left.minus(amount(t.value.of(all))));
        }
    }
    // Memory of huge pages is not available for other use.
    let pages = capacity.iter().filter(|(name, _)| name.starts_with("hugepages-"));
    let pages = pages.fold(Quantity::default(), |sum, (_, all)| sum.plus(*all));
    if let Some(memory) = out.get_mut("memory") {
        *memory = positive(memory.minus(pages));
    }
    out
}

/// Limit of all pods together: capacity without reservations. Eviction thresholds are not subtracted, but pods above them are evicted.
pub fn for_pods(
    capacity: &BTreeMap<String, Quantity>,
    reserved: &BTreeMap<String, Quantity>,
) -> BTreeMap<String, Quantity> {
    less(capacity, reserved)
}

fn less(capacity: &BTreeMap<String, Quantity>, reserved: &BTreeMap<String, Quantity>) -> BTreeMap<String, Quantity> {
    let left = |(name, all): (&String, &Quantity)| {
        let keep = reserved.get(name).copied().unwrap_or_default();
        (name.clone(), positive(all.minus(keep)))
    };
    capacity.iter().map(left).collect()
}

fn positive(q: Quantity) -> Quantity {
    if q.signum() < 0 { Quantity::default() } else { q }
}

fn file(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Architecture of this build as Go names it (`GOARCH`).
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Builds the field `status.nodeInfo`.
pub fn system_info(runtime_version: &str) -> NodeSystemInfo {
    let release = file("/etc/os-release");
    let pretty = release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="));
    let machine = [file("/etc/machine-id"), file("/var/lib/dbus/machine-id")].into_iter().find(|m| !m.is_empty());
    let machine = machine.unwrap_or_default();
    let system = [file("/sys/class/dmi/id/product_uuid"), file("/proc/device-tree/system-id")];
    NodeSystemInfo {
        architecture: architecture().into(),
        boot_id: file("/proc/sys/kernel/random/boot_id"),
        container_runtime_version: runtime_version.into(),
        kernel_version: file("/proc/sys/kernel/osrelease"),
        kube_proxy_version: String::new(),
        kubelet_version: kelson_meta::version::GIT_VERSION.into(),
        system_uuid: system.into_iter().find(|s| !s.is_empty()).unwrap_or_else(|| machine.clone()),
        machine_id: machine,
        operating_system: "linux".into(),
        os_image: pretty.map(|p| p.trim_matches('"').to_owned()).unwrap_or_else(|| "Linux".into()),
        swap: Some(machine_memory().swap).filter(|n| *n > 0).map(|n| NodeSwapStatus { capacity: Some(n) }),
    }
}

/// Current and maximum number of processes and threads.
pub fn processes() -> Option<(u64, u64)> {
    let limit = |path: &str| file(path).parse::<u64>().unwrap_or(u64::MAX);
    let max = limit("/proc/sys/kernel/pid_max").min(limit("/proc/sys/kernel/threads-max"));
    let loads = file("/proc/loadavg");
    let used = loads.split_whitespace().nth(3)?.split('/').nth(1)?.parse().ok()?;
    Some((used, max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::thresholds::DEFAULT_HARD;

    #[test]
    fn meminfo_and_reserves() {
        let m = memory("MemTotal: 2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\nSwapTotal: 4 kB\nSwapFree: 1 kB\n");
        assert_eq!(m, Memory { total: 2 << 20, available: 1 << 20, swap: 4096, swap_free: 1024 });
        let capacity =
            BTreeMap::from([("cpu".to_owned(), Quantity::from_i64(2)), ("pods".to_owned(), Quantity::from_i64(5))]);
        let half = BTreeMap::from([("cpu".to_owned(), "500m".parse().expect("a quantity"))]);
        let left = allocatable(&capacity, &half, DEFAULT_HARD);
        assert_eq!((left["cpu"].to_string(), left["pods"].to_string()), ("1500m".into(), "5".into()));
    }

    #[test]
    fn thresholds_and_huge_pages_keep_memory_from_pods() {
        let amounts = |all: &[(&str, &str)]| -> BTreeMap<String, Quantity> {
            all.iter().map(|(name, q)| ((*name).to_owned(), q.parse().expect("a quantity"))).collect()
        };
        let machine = amounts(&[("memory", "4Gi"), ("ephemeral-storage", "1000"), ("hugepages-2Mi", "1Gi")]);
        let reserved = amounts(&[("memory", "512Mi"), ("ephemeral-storage", "50")]);
        let left = allocatable(&machine, &reserved, DEFAULT_HARD);
        let shown: Vec<String> = left.iter().map(|(name, q)| format!("{name} {}", q.value())).collect();
        assert_eq!(shown, ["ephemeral-storage 850", "hugepages-2Mi 1073741824", "memory 2579496960"]);
        assert_eq!(for_pods(&machine, &reserved)["memory"].to_string(), "3584Mi");
        assert_eq!(allocatable(&machine, &amounts(&[("memory", "9Gi")]), &[])["memory"].value(), 0);
        let mut config = Config::new("n", std::path::Path::new("/"));
        assert_eq!(pods_max(&config, 4), 110);
        config.pods_per_core = Some(10);
        assert_eq!(pods_max(&config, 4), 40);
    }
}
