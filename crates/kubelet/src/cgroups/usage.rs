//! Resource usage of a cgroup, on v1 and v2.
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files, no disk")]

use super::tree::Tree;

/// Memory limits from this value on mean no limit, which cgroup v1 shows as a large number.
const UNBOUNDED_BYTES: u64 = 1 << 60;

/// Usage in bytes and nanoseconds; `None` for what the kernel does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    /// Total CPU time.
    pub cpu_nanos: Option<u64>,
    /// All charged memory.
    pub memory: Option<u64>,
    /// Charged memory without inactive file pages.
    pub working_set: Option<u64>,
    /// Memory that is not backed by files.
    pub rss: Option<u64>,
    /// Page faults in total (minor and major), and major ones.
    pub faults: (Option<u64>, Option<u64>),
    /// Memory limit; `None` if unlimited.
    pub limit: Option<u64>,
    /// Memory of cached file pages.
    pub cache: Option<u64>,
    /// Number of processes killed because memory ran out.
    pub oom_kills: Option<u64>,
    /// Throttling by the CPU quota; `None` without a quota.
    pub throttled: Option<Throttled>,
    /// CPU time in user mode and in the kernel.
    pub cpu_modes_nanos: Option<[u64; 2]>,
    /// Parts of the memory that programs rarely look at.
    pub details: MemoryDetails,
    /// Number of threads, and their maximum.
    pub threads: (Option<u64>, Option<u64>),
}

/// Parts of a cgroup's memory in bytes; `None` for what the kernel does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryDetails {
    /// Highest charge since the cgroup was created.
    pub peak: Option<u64>,
    /// Pages of mapped files.
    pub mapped_file: Option<u64>,
    /// The kernel's own data.
    pub kernel: Option<u64>,
    /// File pages that were used recently, and those that were not.
    pub files: (Option<u64>, Option<u64>),
    /// Number of times the limit was reached.
    pub failures: Option<u64>,
}

/// Throttling of tasks by a CPU quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// Number of elapsed periods.
    pub periods: u64,
    /// Periods in which the quota was used up.
    pub throttled_periods: u64,
    /// Total time that tasks waited, in nanoseconds.
    pub nanos: u64,
}

/// Finds the number of a name in lines `NAME NUMBER`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Nanoseconds of one tick of v1's CPU times (`USER_HZ`, which is 100 on all architectures of Linux that Kelson supports).
const TICK_NANOS: u64 = 10_000_000;

/// Returns the CPU time in user mode and in the kernel, from `cpu.stat` of v2 or `cpuacct.stat` of v1.
fn cpu_modes(unified: bool, cpu: &str, accounted: impl FnOnce() -> Option<String>) -> Option<[u64; 2]> {
    let modes = |text: &str, names: [&str; 2], scale: u64| {
        Some([field(text, names[0])?.saturating_mul(scale), field(text, names[1])?.saturating_mul(scale)])
    };
    match unified {
        true => modes(cpu, ["user_usec", "system_usec"], 1000),
        false => modes(&accounted()?, ["user", "system"], TICK_NANOS),
    }
}

impl CgroupUsage {
    /// Reads the usage of the cgroup at `path` from kernel files.
    pub(super) fn read(tree: &Tree, path: &str) -> Self {
        let unified = tree.is_unified();
        let text = |controller: &str, name: &str| std::fs::read_to_string(tree.file(path, controller, name)).ok();
        let number = |controller: &str, name: &str| text(controller, name)?.trim().parse::<u64>().ok();
        let stat = text("memory", "memory.stat").unwrap_or_default();
        let of = |v2: &str, v1: &str| field(&stat, if unified { v2 } else { v1 });
        let cpu = text("cpu", "cpu.stat").unwrap_or_default();
        let (memory, limit, cpu_nanos, oom_kills) = match unified {
            true => (
                number("memory", "memory.current"),
                number("memory", "memory.max"),
                field(&cpu, "usage_usec").map(|n| n.saturating_mul(1000)),
                text("memory", "memory.events").and_then(|t| field(&t, "oom_kill")),
            ),
            false => (
                number("memory", "memory.usage_in_bytes"),
                number("memory", "memory.limit_in_bytes"),
                number("cpuacct", "cpuacct.usage"),
                text("memory", "memory.oom_control").and_then(|t| field(&t, "oom_kill")),
            ),
        };
        let files = (of("active_file", "total_active_file"), of("inactive_file", "total_inactive_file"));
        let idle = files.1.unwrap_or(0);
        let events = || text("memory", "memory.events");
        let (peak, kernel, failures) = match unified {
            true => (number("memory", "memory.peak"), field(&stat, "kernel"), events().and_then(|t| field(&t, "max"))),
            false => (
                number("memory", "memory.max_usage_in_bytes"),
                number("memory", "memory.kmem.usage_in_bytes"),
                number("memory", "memory.failcnt"),
            ),
        };
        let has_quota = match unified {
            true => text("cpu", "cpu.max").is_none_or(|max| !max.starts_with("max")),
            false => text("cpu", "cpu.cfs_quota_us").is_none_or(|quota| !quota.starts_with('-')),
        };
        let waited =
            if unified { field(&cpu, "throttled_usec").map(|n| n * 1000) } else { field(&cpu, "throttled_time") };
        Self {
            cpu_nanos,
            memory,
            working_set: memory.map(|m| m.saturating_sub(idle)),
            rss: of("anon", "total_rss"),
            faults: (of("pgfault", "total_pgfault"), of("pgmajfault", "total_pgmajfault")),
            limit: limit.filter(|l| *l < UNBOUNDED_BYTES),
            cache: of("file", "total_cache"),
            oom_kills,
            throttled: waited.filter(|_| has_quota).and_then(|nanos| {
                let (periods, throttled_periods) = (field(&cpu, "nr_periods")?, field(&cpu, "nr_throttled")?);
                Some(Throttled { periods, throttled_periods, nanos })
            }),
            cpu_modes_nanos: cpu_modes(unified, &cpu, || text("cpuacct", "cpuacct.stat")),
            details: MemoryDetails {
                peak,
                mapped_file: of("file_mapped", "total_mapped_file"),
                kernel,
                files,
                failures,
            },
            threads: (number("pids", "pids.current"), number("pids", "pids.max")),
        }
    }

    /// Memory left below the limit, if there is one.
    pub fn available(&self) -> Option<u64> {
        Some(self.limit?.saturating_sub(self.working_set?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &std::path::Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let at = dir.join(name);
            std::fs::create_dir_all(at.parent().expect("a directory")).expect("made");
            std::fs::write(at, text).expect("written");
        }
    }

    #[test]
    fn usage_is_read_on_cgroup_v1_and_v2() {
        let dir = tempfile::tempdir().expect("a directory");
        write(
            dir.path(),
            &[
                ("one/pods/memory.current", "1000\n"),
                ("one/pods/memory.max", "3000\n"),
                (
                    "one/pods/memory.stat",
                    "anon 300\nanon_thp 7\nfile 500\nkernel 60\nfile_mapped 50\ninactive_file 200\nactive_file 100\npgfault 9\npgmajfault 2\n",
                ),
                ("one/pods/memory.events", "max 8\noom 4\noom_kill 3\n"),
                ("one/pods/memory.peak", "2000\n"),
                ("one/pods/pids.current", "4\n"),
                ("one/pods/pids.max", "max\n"),
                (
                    "one/pods/cpu.stat",
                    "usage_usec 5\nuser_usec 20000\nsystem_usec 30000\nnr_periods 8\nnr_throttled 6\nthrottled_usec 7\n",
                ),
                ("two/memory/pods/memory.usage_in_bytes", "1000\n"),
                ("two/memory/pods/memory.limit_in_bytes", "3000\n"),
                ("two/memory/pods/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
                (
                    "two/memory/pods/memory.stat",
                    "rss 1\ntotal_rss 300\ntotal_cache 500\ntotal_mapped_file 50\ntotal_inactive_file 200\ntotal_active_file 100\ntotal_pgfault 9\ntotal_pgmajfault 2\n",
                ),
                ("two/memory/pods/memory.max_usage_in_bytes", "2000\n"),
                ("two/memory/pods/memory.kmem.usage_in_bytes", "60\n"),
                ("two/memory/pods/memory.failcnt", "8\n"),
                ("two/pids/pods/pids.current", "4\n"),
                ("two/pids/pods/pids.max", "max\n"),
                ("two/cpuacct/pods/cpuacct.stat", "user 2\nsystem 3\n"),
                ("two/cpuacct/pods/cpuacct.usage", "5000\n"),
                ("two/cpu/pods/cpu.stat", "nr_periods 8\nnr_throttled 6\nthrottled_time 7000\n"),
                ("two/memory/free/memory.limit_in_bytes", "9223372036854771712\n"),
            ],
        );
        let expected = CgroupUsage {
            cpu_nanos: Some(5000),
            memory: Some(1000),
            working_set: Some(800),
            rss: Some(300),
            faults: (Some(9), Some(2)),
            limit: Some(3000),
            cache: Some(500),
            oom_kills: Some(3),
            throttled: Some(Throttled { periods: 8, throttled_periods: 6, nanos: 7000 }),
            cpu_modes_nanos: Some([20_000_000, 30_000_000]),
            details: MemoryDetails {
                peak: Some(2000),
                mapped_file: Some(50),
                kernel: Some(60),
                files: (Some(100), Some(200)),
                failures: Some(8),
            },
            threads: (Some(4), None),
        };
        let (one, two) = (Tree::Unified(dir.path().join("one")), Tree::Split(dir.path().join("two")));
        for tree in [&one, &two] {
            assert_eq!(CgroupUsage::read(tree, "pods"), expected);
        }
        assert_eq!(expected.available(), Some(2200));
        assert_eq!(CgroupUsage::read(&two, "free").limit, None, "the largest number is no limit");
        assert_eq!(CgroupUsage::read(&one, "none"), CgroupUsage::default());
        write(dir.path(), &[("one/pods/cpu.max", "max 100000\n"), ("two/cpu/pods/cpu.cfs_quota_us", "-1\n")]);
        for tree in [&one, &two] {
            assert_eq!(CgroupUsage::read(tree, "pods").throttled, None, "without a quota nothing is throttled");
        }
        write(dir.path(), &[("one/pods/cpu.max", "5000 100000\n"), ("two/cpu/pods/cpu.cfs_quota_us", "5000\n")]);
        for tree in [&one, &two] {
            assert_eq!(CgroupUsage::read(tree, "pods"), expected);
        }
    }
}
