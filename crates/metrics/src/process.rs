//! What every component shows of the process it lives in: memory, CPU time, file descriptors, tasks, build.

use kelson_meta::version;

use crate::Families;

/// The process: names and meaning as of the client libraries of Prometheus.
pub(crate) fn process(families: &mut Families) {
    let used = kelson_platform::process::usage();
    if let Some(seconds) = used.cpu_s {
        families
            .counter("process_cpu_seconds_total", "Total user and system CPU time in seconds.")
            .sample(&[], seconds);
    }
    let limit = kelson_platform::process::open_files_max().map_or(f64::INFINITY, |n| n as f64);
    let gauges = [
        ("process_resident_memory_bytes", "Resident memory size in bytes.", used.resident_bytes),
        ("process_virtual_memory_bytes", "Virtual memory size in bytes.", used.virtual_bytes),
        ("process_open_fds", "Number of open file descriptors.", used.open_files),
        ("process_max_fds", "Maximum number of open file descriptors.", Some(limit)),
        ("process_start_time_seconds", "Start time of the process as Unix time in seconds.", used.started_s),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            families.gauge(name, help).sample(&[], value);
        }
    }
}

/// Tasks by name. `go_goroutines` is what dashboards and alerts of Kubernetes' components read; a task is its like.
pub(crate) fn tasks(families: &mut Families) {
    let stats = kelson_tasks::stats();
    let running: u64 = stats.iter().map(|s| s.running).sum();
    families.gauge("go_goroutines", "Number of tasks.").sample(&[], running as f64);
    let mut by_name = families.gauge("kelson_tasks_running", "Number of tasks by name.");
    for s in stats.iter().filter(|s| s.running > 0) {
        by_name.sample(&[("task", s.name)], s.running as f64);
    }
    let mut by_name = families.counter("kelson_task_panics_total", "Panicked tasks by name.");
    for s in &stats {
        by_name.sample(&[("task", s.name)], s.panicked as f64);
    }
}

/// Adds the build information, as labels of a constant.
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
    families.gauge("kubernetes_build_info", "Constant 1, labelled with the build.").sample(&labels, 1.0);
}
