//! What those in a cgroup use, as the kernel counts it, in one tree of all controllers or in several.
#![allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk")]

use super::tree::Tree;

/// Memory limits from here on are none: the kernel of the split tree writes a large number for that.
const UNBOUNDED_BYTES: u64 = 1 << 60;

/// What is used, as far as the kernel tells; bytes and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    /// CPU time so far.
    pub cpu_nanos: Option<u64>,
    /// All memory charged.
    pub memory: Option<u64>,
    /// The same without files that nobody has used lately.
    pub working_set: Option<u64>,
    /// Memory that no file stands behind.
    pub rss: Option<u64>,
    /// Page faults that needed no disk, and that did.
    pub faults: (Option<u64>, Option<u64>),
    /// The memory that may be used; `None` where there is no bound.
    pub limit: Option<u64>,
    /// Pages of files.
    pub cache: Option<u64>,
    /// How many times it had no memory left and a process was ended.
    pub oom_kills: Option<u64>,
    /// Periods of its CPU quota so far, those in which it was held back, and for how long.
    pub throttled: Option<Throttled>,
}

/// How often a CPU quota held tasks back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// Periods that have passed.
    pub periods: u64,
    /// Periods in which the quota was used up.
    pub throttled_periods: u64,
    /// How long tasks waited for the next period, nanoseconds.
    pub nanos: u64,
}

/// The number behind a name in text of lines `NAME NUMBER`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

impl CgroupUsage {
    /// Of the cgroup at `path`. Reads files of the kernel's.
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

    /// What of its limit is left, where there is one.
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
    fn both_forms_of_the_tree_are_read() {
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
