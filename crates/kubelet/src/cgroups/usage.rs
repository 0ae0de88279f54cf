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
    /// Throttling by the CPU quota.
    pub throttled: Option<Throttled>,
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
        let idle = of("inactive_file", "total_inactive_file").unwrap_or(0);
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
            throttled: waited.and_then(|nanos| {
                let (periods, throttled_periods) = (field(&cpu, "nr_periods")?, field(&cpu, "nr_throttled")?);
                Some(Throttled { periods, throttled_periods, nanos })
            }),
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
                    "anon 300\nanon_thp 7\nfile 500\ninactive_file 200\npgfault 9\npgmajfault 2\n",
                ),
                ("one/pods/memory.events", "oom 4\noom_kill 3\n"),
                ("one/pods/cpu.stat", "usage_usec 5\nnr_periods 8\nnr_throttled 6\nthrottled_usec 7\n"),
                ("two/memory/pods/memory.usage_in_bytes", "1000\n"),
                ("two/memory/pods/memory.limit_in_bytes", "3000\n"),
                ("two/memory/pods/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
                (
                    "two/memory/pods/memory.stat",
                    "rss 1\ntotal_rss 300\ntotal_cache 500\ntotal_inactive_file 200\ntotal_pgfault 9\ntotal_pgmajfault 2\n",
                ),
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
        };
        let (one, two) = (Tree::Unified(dir.path().join("one")), Tree::Split(dir.path().join("two")));
        for tree in [&one, &two] {
            assert_eq!(CgroupUsage::read(tree, "pods"), expected);
        }
        assert_eq!(expected.available(), Some(2200));
        assert_eq!(CgroupUsage::read(&two, "free").limit, None, "the largest number is no limit");
        assert_eq!(CgroupUsage::read(&one, "none"), CgroupUsage::default());
    }
}
