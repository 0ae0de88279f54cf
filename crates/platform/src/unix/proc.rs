//! Process statistics from Linux' `/proc`.
#![allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk")]

use crate::Usage;

/// Values of `/proc/self/stat` in its units.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// The CPU time in user and system mode together, in clock ticks.
    cpu_ticks: u64,
    /// The start time after boot, in clock ticks.
    start_ticks: u64,
    /// The virtual memory in bytes.
    virtual_bytes: u64,
    /// The resident memory in pages.
    resident_pages: u64,
}

pub(super) fn usage() -> Usage {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let Some(stat) = parse_stat(&read("/proc/self/stat")) else { return Usage::default() };
    // Both values differ between machines: some boards have 16 KiB pages by default.
    let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
    let page_bytes = rustix::param::page_size() as f64;
    // The directory listing itself uses one descriptor.
    let open = std::fs::read_dir("/proc/self/fd").ok().map(|open| open.count().saturating_sub(1));
    let boot = parse_boot(&read("/proc/stat"));
    Usage {
        cpu_s: Some(stat.cpu_ticks as f64 / ticks_per_s),
        resident_bytes: Some(stat.resident_pages as f64 * page_bytes),
        virtual_bytes: Some(stat.virtual_bytes as f64),
        open_files: open.map(|n| n as f64),
        started_s: boot.map(|boot| boot as f64 + stat.start_ticks as f64 / ticks_per_s),
    }
}

/// Parses `/proc/self/stat`. Fields are counted from the last parenthesis, because the command name may contain spaces
/// and parentheses.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, after) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let field = |i: usize| fields.get(i)?.parse::<u64>().ok();
    Some(Stat {
        cpu_ticks: field(11)? + field(12)?,
        start_ticks: field(19)?,
        virtual_bytes: field(20)?,
        resident_pages: field(21)?,
    })
}

/// Returns the boot time in seconds since the Unix epoch.
fn parse_boot(text: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc() {
        let line = "42 (a) b)) S 1 42 42 0 -1 4194560 900 0 0 0 150 50 0 0 20 0 8 0 7000 123456789 2500 1844";
        let want = Stat { cpu_ticks: 200, start_ticks: 7000, virtual_bytes: 123_456_789, resident_pages: 2500 };
        assert_eq!(parse_stat(line), Some(want));
        assert_eq!(parse_stat("42 (short) S 1"), None);
        assert_eq!(parse_boot("cpu 1 2\nbtime 1700000000\nprocesses 9\n"), Some(1_700_000_000));
        assert_eq!(parse_boot("cpu 1 2\n"), None);
    }
}
