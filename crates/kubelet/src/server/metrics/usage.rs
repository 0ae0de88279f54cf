//! Usage of containers and the machine, read once per response.
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files, no disk")]

use std::collections::HashMap;
use std::path::Path;

use kelson_cri::CriResult;
use kelson_cri::proto as cri;

use super::super::state::ServerState;
use crate::cgroups::io::DeviceIo;
use crate::cgroups::pressure::ResourcePressures;
use crate::cgroups::usage::CgroupUsage;
use crate::runtime::labels;

/// Usage of one running container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunningUsage {
    /// Namespace of the container's pod.
    pub namespace: String,
    /// Name of the container's pod.
    pub pod: String,
    /// UID of the pod, part of its cgroup's path.
    pub uid: String,
    /// Name of the container in the pod.
    pub container: String,
    /// The runtime's ID of the container.
    pub id: String,
    /// Image as named in the spec.
    pub image: String,
    /// Time of the reading in nanoseconds since the epoch.
    pub at: i64,
    /// Start time in nanoseconds since the epoch.
    pub started_at: i64,
    /// Total CPU time in nanoseconds.
    pub cpu_nanos: u64,
    /// Current CPU usage in nanocores.
    pub cpu_now: Option<u64>,
    /// Memory working set in bytes.
    pub memory: u64,
    /// Charged memory in bytes.
    pub memory_usage: Option<u64>,
    /// Memory left below the limit in bytes; `None` if unlimited.
    pub available: Option<u64>,
    /// Anonymous memory in bytes.
    pub rss: Option<u64>,
    /// Swap usage in bytes, if known.
    pub swap: Option<u64>,
    /// Swap left below the limit in bytes; `None` if unlimited.
    pub swap_available: Option<u64>,
    /// Pressure stall information.
    pub pressure: ResourcePressures,
    /// Statistics of its cgroup.
    pub cgroup: CgroupUsage,
    /// I/O of its cgroup by device.
    pub io: Vec<DeviceIo>,
    /// Number of its processes.
    pub processes: Option<u64>,
    /// Page faults: minor and major.
    pub faults: (Option<u64>, Option<u64>),
    /// Size of the writable layer in bytes.
    pub disk: u64,
    /// Inodes of the writable layer.
    pub inodes: Option<u64>,
}

/// Reads the usage of all running containers.
pub async fn all(state: &ServerState) -> CriResult<Vec<RunningUsage>> {
    let stats = state.runtime.list_container_stats(None).await?;
    let containers = state.runtime.list_containers(None).await?;
    let mut all = join(stats, containers);
    for u in &mut all {
        u.cgroup = state.cgroups.container_usage(&u.uid, &u.id);
        (u.io, u.processes) = state.cgroups.of_container(&u.uid, &u.id);
        u.available = u.available.or(u.cgroup.available());
        if let Some(dir) = state.cgroups.container_directory(&u.uid, &u.id) {
            u.read(&dir);
        }
    }
    Ok(all)
}

impl RunningUsage {
    /// Reads from the container's cgroup what the runtime does not report.
    fn read(&mut self, cgroup: &Path) {
        let number = |name: &str| std::fs::read_to_string(cgroup.join(name)).ok()?.trim().parse::<u64>().ok();
        self.pressure = ResourcePressures::read(cgroup);
        if self.swap.is_none() {
            self.swap = number("memory.swap.current");
            let max = number("memory.swap.max");
            self.swap_available = max.map(|max| max.saturating_sub(self.swap.unwrap_or(0)));
        }
    }
}

/// Joins statistics with the list of containers. Ended containers are omitted.
fn join(stats: Vec<cri::ContainerStats>, containers: Vec<cri::Container>) -> Vec<RunningUsage> {
    let known: HashMap<String, cri::Container> = containers.into_iter().map(|c| (c.id.clone(), c)).collect();
    let one = |s: cri::ContainerStats| {
        let a = s.attributes?;
        let get = |k: &str| a.labels.get(k).cloned().unwrap_or_default();
        let value = |v: Option<cri::UInt64Value>| v.map(|v| v.value);
        let (cpu, memory) = (s.cpu.unwrap_or_default(), s.memory.unwrap_or_default());
        let layer = s.writable_layer.unwrap_or_default();
        let listed = known.get(&a.id);
        Some(RunningUsage {
            namespace: get(labels::POD_NAMESPACE),
            pod: get(labels::POD_NAME),
            uid: get(labels::POD_UID),
            container: get(labels::CONTAINER_NAME),
            image: listed.and_then(|c| c.image.as_ref()).map(|i| i.image.clone()).unwrap_or_default(),
            started_at: listed.map_or(0, |c| c.created_at),
            id: a.id,
            at: cpu.timestamp,
            cpu_nanos: value(cpu.usage_core_nano_seconds).unwrap_or(0),
            cpu_now: value(cpu.usage_nano_cores),
            memory: value(memory.working_set_bytes).unwrap_or(0),
            memory_usage: value(memory.usage_bytes).filter(|u| *u > 0),
            available: value(memory.available_bytes).filter(|a| *a > 0),
            rss: value(memory.rss_bytes).filter(|r| *r > 0),
            swap: s.swap.as_ref().and_then(|s| value(s.swap_usage_bytes)),
            swap_available: s.swap.as_ref().and_then(|s| value(s.swap_available_bytes)),
            pressure: ResourcePressures::default(),
            cgroup: CgroupUsage::default(),
            io: Vec::new(),
            processes: None,
            faults: (value(memory.page_faults), value(memory.major_page_faults)),
            disk: value(layer.used_bytes).unwrap_or(0),
            inodes: value(layer.inodes_used),
        })
    };
    stats.into_iter().filter_map(one).filter(|u| u.at > 0).collect()
}

/// Total CPU time of the machine since boot in nanoseconds.
pub fn machine_cpu_nanos() -> u64 {
    cpu_nanos(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn cpu_nanos(stat: &str) -> u64 {
    let line = stat.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // All fields except idle and I/O wait, without guest time, which user time includes; in hundredths of a second.
    let busy: u64 = fields.iter().take(8).enumerate().filter(|(i, _)| !matches!(i, 3 | 4)).map(|(_, n)| n).sum();
    busy * 10_000_000
}

/// Boot time in seconds since the epoch.
pub fn boot_seconds() -> i64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().find_map(|l| l.strip_prefix("btime "));
    line.and_then(|l| l.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn sample() -> RunningUsage {
        RunningUsage {
            namespace: "n".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: "c".into(),
            id: "i".into(),
            image: "x:1".into(),
            at: 2_000_000_000,
            started_at: 1_500_000_000,
            cpu_nanos: 250_000_000,
            cpu_now: Some(7),
            memory: 4096,
            memory_usage: Some(8192),
            rss: Some(1024),
            disk: 512,
            ..RunningUsage::default()
        }
    }

    #[test]
    fn usage_missing_in_the_runtime_is_read_from_the_cgroup() {
        let dir = tempfile::tempdir().expect("tempdir");
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("write");
        let mut u = sample();
        u.read(dir.path());
        assert_eq!(u, sample(), "nothing there");
        write("memory.swap.current", "4096\n");
        write("memory.swap.max", "max\n");
        write("cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n");
        u.read(dir.path());
        assert_eq!((u.swap, u.swap_available, u.pressure.cpu.map(|p| p.some.total)), (Some(4096), None, Some(7)));
        u.swap = None;
        write("memory.swap.max", "10000\n");
        u.read(dir.path());
        assert_eq!((u.swap, u.swap_available), (Some(4096), Some(5904)));
        u.swap = Some(1);
        u.read(dir.path());
        assert_eq!(u.swap, Some(1), "the runtime's word counts");
    }

    #[test]
    fn statistics_are_joined_with_containers() {
        let attributes = cri::ContainerAttributes {
            id: "i".into(),
            labels: [(labels::POD_NAME.to_owned(), "p".to_owned())].into(),
            ..Default::default()
        };
        let cpu = cri::CpuUsage { timestamp: 5, ..Default::default() };
        let stats = |cpu| cri::ContainerStats { attributes: Some(attributes.clone()), cpu, ..Default::default() };
        let listed = cri::Container { id: "i".into(), created_at: 3, ..Default::default() };
        let all = join(vec![stats(Some(cpu)), stats(None)], vec![listed]);
        assert_eq!((all.len(), all[0].pod.as_str(), all[0].started_at), (1, "p", 3));
        assert_eq!(cpu_nanos("cpu 1 2 3 100 100 4 5 6 50 50\n"), 21 * 10_000_000);
    }
}
