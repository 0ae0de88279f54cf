//! Metrics of `/metrics/cadvisor` that containers, pods, QoS classes and the machine have in common, with cAdvisor's names.
use kelson_metrics::Families;

use crate::cgroups::io::DeviceIo;
use crate::cgroups::pressure::{ResourcePressures, Stall};
use crate::cgroups::usage::CgroupUsage;

/// The source of one cgroup's samples.
pub struct CgroupSample<'a> {
    /// Labels by name.
    pub labels: Vec<(&'a str, &'a str)>,
    /// Usage of the cgroup.
    pub usage: &'a CgroupUsage,
    /// The pressure stall information of the cgroup.
    pub pressure: &'a ResourcePressures,
    /// Its I/O by device.
    pub io: &'a [DeviceIo],
    /// Number of its processes.
    pub processes: Option<u64>,
    /// Time of the reading in milliseconds since the epoch.
    pub at: i64,
}

type CgroupColumn<T> = (&'static str, &'static str, fn(&T) -> Option<f64>);

fn seconds(stall: Stall) -> f64 {
    stall.total as f64 / 1e6
}

fn number(n: Option<u64>) -> Option<f64> {
    n.map(|n| n as f64)
}

/// CPU modes, throttling by the CPU quota, and failures for want of memory.
const COUNTERS: &[CgroupColumn<CgroupUsage>] = &[
    ("container_cpu_user_seconds_total", "CPU time in user mode in seconds.", |u| {
        u.cpu_modes_nanos.map(|[user, _]| user as f64 / 1e9)
    }),
    ("container_cpu_system_seconds_total", "CPU time in the kernel in seconds.", |u| {
        u.cpu_modes_nanos.map(|[_, system]| system as f64 / 1e9)
    }),
    ("container_cpu_cfs_periods_total", "Elapsed periods of the CPU quota.", |u| u.throttled.map(|t| t.periods as f64)),
    ("container_cpu_cfs_throttled_periods_total", "Throttled periods of the CPU quota.", |u| {
        u.throttled.map(|t| t.throttled_periods as f64)
    }),
    ("container_cpu_cfs_throttled_seconds_total", "Total time throttled by the CPU quota in seconds.", |u| {
        u.throttled.map(|t| t.nanos as f64 / 1e9)
    }),
    ("container_memory_failcnt", "Number of times that the memory limit was reached.", |u| number(u.details.failures)),
    ("container_oom_events_total", "Processes killed because of memory shortage.", |u| number(u.oom_kills)),
];

const GAUGES: &[CgroupColumn<CgroupUsage>] = &[
    ("container_memory_cache", "File pages in memory in bytes.", |u| number(u.cache)),
    ("container_memory_mapped_file", "Pages of mapped files in bytes.", |u| number(u.details.mapped_file)),
    ("container_memory_kernel_usage", "Memory of the kernel in bytes.", |u| number(u.details.kernel)),
    ("container_memory_max_usage_bytes", "Highest memory usage in bytes.", |u| number(u.details.peak)),
    ("container_memory_total_active_file_bytes", "File pages that were used recently in bytes.", |u| {
        number(u.details.files.0)
    }),
    ("container_memory_total_inactive_file_bytes", "File pages that were not used recently in bytes.", |u| {
        number(u.details.files.1)
    }),
    ("container_threads", "Number of threads.", |u| number(u.threads.0)),
    ("container_threads_max", "Maximum number of threads; 0 means no limit.", |u| {
        u.threads.0.map(|_| u.threads.1.unwrap_or(0) as f64)
    }),
];

/// Pressure: stalled (all tasks waited) and waiting (some tasks waited) (`KubeletPSI`).
const PRESSURES: &[CgroupColumn<ResourcePressures>] = &[
    ("container_pressure_cpu_stalled_seconds_total", "Total time in which all tasks waited for CPU in seconds.", |p| {
        p.cpu.map(|p| seconds(p.full))
    }),
    (
        "container_pressure_cpu_waiting_seconds_total",
        "Total time in which some tasks waited for CPU in seconds.",
        |p| p.cpu.map(|p| seconds(p.some)),
    ),
    (
        "container_pressure_memory_stalled_seconds_total",
        "Total time in which all tasks waited for memory in seconds.",
        |p| p.memory.map(|p| seconds(p.full)),
    ),
    (
        "container_pressure_memory_waiting_seconds_total",
        "Total time in which some tasks waited for memory in seconds.",
        |p| p.memory.map(|p| seconds(p.some)),
    ),
    ("container_pressure_io_stalled_seconds_total", "Total time in which all tasks waited for I/O in seconds.", |p| {
        p.io.map(|p| seconds(p.full))
    }),
    ("container_pressure_io_waiting_seconds_total", "Total time in which some tasks waited for I/O in seconds.", |p| {
        p.io.map(|p| seconds(p.some))
    }),
];

type IoColumn = (&'static str, &'static str, fn(&DeviceIo) -> u64);

const IO: &[IoColumn] = &[
    ("container_fs_reads_total", "Read requests by device.", |io| io.requests[0]),
    ("container_fs_writes_total", "Write requests by device.", |io| io.requests[1]),
    ("container_fs_reads_bytes_total", "Bytes read by device.", |io| io.bytes[0]),
    ("container_fs_writes_bytes_total", "Bytes written by device.", |io| io.bytes[1]),
];

/// Writes the metrics of these cgroups.
pub fn series(f: &mut Families, all: &[CgroupSample<'_>]) {
    for (name, help, value) in COUNTERS {
        let mut of = f.counter(name, help);
        for (s, v) in all.iter().filter_map(|s| Some((s, value(s.usage)?))) {
            of.sample_at(&s.labels, v, s.at);
        }
    }
    for (name, help, value) in PRESSURES {
        let mut of = f.counter(name, help);
        for (s, v) in all.iter().filter_map(|s| Some((s, value(s.pressure)?))) {
            of.sample_at(&s.labels, v, s.at);
        }
    }
    for (name, help, value) in GAUGES {
        let mut of = f.gauge(name, help);
        for (s, v) in all.iter().filter_map(|s| Some((s, value(s.usage)?))) {
            of.sample(&s.labels, v);
        }
    }
    let mut of = f.gauge("container_processes", "Number of processes.");
    for (s, n) in all.iter().filter_map(|s| Some((s, s.processes?))) {
        of.sample(&s.labels, n as f64);
    }
    for (name, help, value) in IO {
        let mut of = f.counter(name, help);
        for (s, io) in all.iter().flat_map(|s| s.io.iter().map(move |io| (s, io))) {
            let labels: Vec<(&str, &str)> = s.labels.iter().copied().chain([("device", io.device.as_str())]).collect();
            of.sample_at(&labels, value(io) as f64, s.at);
        }
    }
}

/// Writes minor and major page faults. The kernel counts a cgroup's together with those below it, so both scopes are equal.
pub fn page_faults(f: &mut Families, labels: &[(&str, &str)], faults: (Option<u64>, Option<u64>)) {
    let mut of = f.counter("container_memory_failures_total", "Page faults by type (minor or major).");
    for (kind, n) in [("pgfault", faults.0), ("pgmajfault", faults.1)] {
        for (scope, n) in ["container", "hierarchy"].into_iter().filter_map(|scope| Some((scope, n?))) {
            let labels: Vec<(&str, &str)> =
                labels.iter().copied().chain([("failure_type", kind), ("scope", scope)]).collect();
            of.sample(&labels, n as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroups::usage::MemoryDetails;

    #[test]
    fn devices_threads_and_memory_have_metrics() {
        let details = MemoryDetails { peak: Some(9), failures: Some(3), ..MemoryDetails::default() };
        let usage = CgroupUsage {
            cpu_modes_nanos: Some([1_500_000_000, 500_000_000]),
            details,
            threads: (Some(4), None),
            ..CgroupUsage::default()
        };
        let io = [DeviceIo { device: "/dev/sda".into(), requests: [1, 2], bytes: [4096, 8192] }];
        let pressure = ResourcePressures::default();
        let labels = vec![("id", "/kubepods")];
        let sample = CgroupSample { labels, usage: &usage, pressure: &pressure, io: &io, processes: Some(2), at: 7 };
        let mut f = Families::default();
        series(&mut f, &[sample]);
        let text = f.text();
        for line in [
            "container_cpu_user_seconds_total{id=\"/kubepods\"} 1.5 7",
            "container_cpu_system_seconds_total{id=\"/kubepods\"} 0.5 7",
            "container_memory_failcnt{id=\"/kubepods\"} 3 7",
            "container_memory_max_usage_bytes{id=\"/kubepods\"} 9",
            "container_threads{id=\"/kubepods\"} 4",
            "container_threads_max{id=\"/kubepods\"} 0",
            "container_processes{id=\"/kubepods\"} 2",
            "container_fs_reads_total{id=\"/kubepods\",device=\"/dev/sda\"} 1 7",
            "container_fs_writes_bytes_total{id=\"/kubepods\",device=\"/dev/sda\"} 8192 7",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        assert!(!text.contains("container_oom_events_total{"), "what is not known is not shown:\n{text}");
    }
}
