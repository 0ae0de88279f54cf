//! Memory and swap.
use crate::finding::{Finding, Findings, Level};
use crate::host::{Host, Purpose};

const MIB: u64 = 1 << 20;
/// Below it, a server with a node and a few pods was not seen to live.
const LEAST_BYTES: u64 = 320 * MIB;
/// Below it, what is free for pods is little.
const ADVISED_BYTES: u64 = 480 * MIB;

/// The facts of `/proc/meminfo` and `/proc/swaps`, in bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct MemoryFacts {
    /// All of the machine's.
    pub total_bytes: u64,
    /// The memory available to programs in bytes.
    pub available_bytes: u64,
    /// Swap that is switched on.
    pub swap_bytes: u64,
}

/// Reads the memory of the machine.
pub fn read(host: &Host) -> MemoryFacts {
    let text = host.text("/proc/meminfo");
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    let swaps = host.text("/proc/swaps");
    let swaps = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    MemoryFacts {
        total_bytes: kib("MemTotal:"),
        available_bytes: kib("MemAvailable:"),
        swap_bytes: swaps.sum::<u64>() * 1024,
    }
}

/// Returns the findings for the purpose.
pub fn find(facts: &MemoryFacts, purpose: &Purpose) -> Vec<Finding> {
    let mut findings = Findings::of("memory");
    let total = format!("{} MiB of memory, {} MiB available", facts.total_bytes / MIB, facts.available_bytes / MIB);
    let action = "Use a machine with more memory, or put server and nodes on several.";
    if purpose.node && facts.total_bytes > 0 && facts.total_bytes < LEAST_BYTES {
        let meaning =
            "A server and its runtime take about 130 MiB, and pods are evicted below 100 MiB, so no pod can run.";
        findings.add(Level::Warning, total.as_str(), meaning, action);
    } else if purpose.node && facts.total_bytes > 0 && facts.total_bytes < ADVISED_BYTES {
        findings.add(Level::Info, total.as_str(), "This is sufficient for a server and about five small pods.", "");
    } else {
        findings.ok(total);
    }
    if purpose.node && facts.swap_bytes > 0 {
        findings.add(
            Level::Info,
            format!("{} MiB of swap", facts.swap_bytes / MIB),
            "Pods use none of it, unless a KubeletConfiguration says memorySwap.swapBehavior: LimitedSwap.",
            "",
        );
    }
    findings.done()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{control_plane, levels, machine, purpose};

    fn facts(total_mib: u64, swap: &str) -> MemoryFacts {
        let text = format!("MemTotal: {} kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\n", total_mib * 1024);
        let swaps = format!("Filename\tType\tSize\tUsed\tPriority\n{swap}");
        let (_dir, host) = machine(&[("/proc/meminfo", &text), ("/proc/swaps", &swaps)], &[]);
        read(&host)
    }

    #[test]
    fn what_memory_is_enough_for() {
        assert_eq!(facts(512, "").available_bytes, 2 * MIB);
        assert_eq!(levels(&find(&facts(1024, ""), &purpose())), [Level::Ok]);
        assert_eq!(levels(&find(&facts(384, ""), &purpose())), [Level::Info]);
        assert_eq!(levels(&find(&facts(256, ""), &purpose())), [Level::Warning]);
        assert_eq!(levels(&find(&facts(256, ""), &control_plane())), [Level::Ok]);
    }

    #[test]
    fn swap_is_named() {
        let found = find(&facts(1024, "/swap file 524288 0 -2\n/dev/sda2 partition 524288 0 -3\n"), &purpose());
        assert_eq!(levels(&found), [Level::Ok, Level::Info]);
        assert!(found[1].found.starts_with("1024 MiB"), "{found:?}");
    }
}
