//! What every component shows of the process it lives in: memory, CPU time, file descriptors, tasks, build.
#![allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk")]

use kelson_meta::version;

use crate::Families;

/// What `/proc/self/stat` says, in its units.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// User and system time together, clock ticks.
    cpu_ticks: u64,
    /// Start after boot, clock ticks.
    start_ticks: u64,
    /// Virtual memory, bytes.
    virtual_bytes: u64,
    /// Resident memory, pages.
    resident_pages: u64,
}

/// The process: names and meaning as of the client libraries of Prometheus.
pub(crate) fn process(families: &mut Families) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let Some(stat) = parse_stat(&read("/proc/self/stat")) else { return };
    // Both differ between machines: 16 KiB pages are the default on some boards.
    let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
    let page_bytes = rustix::param::page_size() as f64;
    let gauge = |families: &mut Families, name: &str, help: &str, value: f64| {
        families.gauge(name, help).sample(&[], value);
    };
    families
        .counter("process_cpu_seconds_total", "Processor time of this process, user and system, in seconds.")
        .sample(&[], stat.cpu_ticks as f64 / ticks_per_s);
    gauge(
        families,
        "process_resident_memory_bytes",
        "Resident memory in bytes.",
        stat.resident_pages as f64 * page_bytes,
    );
    gauge(families, "process_virtual_memory_bytes", "Virtual memory in bytes.", stat.virtual_bytes as f64);
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        // The listing itself holds one.
        let open = open.count().saturating_sub(1);
        gauge(families, "process_open_fds", "Open file descriptors.", open as f64);
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.map_or(f64::INFINITY, |n| n as f64);
    gauge(families, "process_max_fds", "File descriptors that may be open.", limit);
    if let Some(boot) = parse_boot(&read("/proc/stat")) {
        let started = boot as f64 + stat.start_ticks as f64 / ticks_per_s;
        gauge(families, "process_start_time_seconds", "Start of the process in seconds since the Unix epoch.", started);
    }
}

/// Tasks by name. `go_goroutines` is what dashboards and alerts of Kubernetes' components read; a task is its like.
pub(crate) fn tasks(families: &mut Families) {
    let stats = kelson_tasks::stats();
    let running: u64 = stats.iter().map(|s| s.running).sum();
    families.gauge("go_goroutines", "Tasks that exist now.").sample(&[], running as f64);
    let mut by_name = families.gauge("kelson_tasks_running", "Tasks that exist now, by name.");
    for s in stats.iter().filter(|s| s.running > 0) {
        by_name.sample(&[("task", s.name)], s.running as f64);
    }
    let mut by_name = families.counter("kelson_task_panics_total", "Tasks that ended by a panic, by name.");
    for s in &stats {
        by_name.sample(&[("task", s.name)], s.panicked as f64);
    }
}

/// Which build this is, as labels of a constant.
pub(crate) fn build(families: &mut Families) {
    let build = version::build();
    let labels = [
        ("build_date", build.date),
        ("compiler", "rustc"),
        ("git_commit", build.commit),
        ("git_tree_state", "clean"),
        ("git_version", version::GIT_VERSION),
        ("major", version::MAJOR),
        ("minor", version::MINOR),
        ("platform", &version::platform()),
    ];
    families.gauge("kubernetes_build_info", "Always 1; the labels say which build this is.").sample(&labels, 1.0);
}

/// Fields are counted from the command's closing parenthesis: the command itself may hold blanks and parentheses.
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

/// Boot in seconds since the Unix epoch.
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
