//! How many files may be open, and how many may be watched.
use crate::finding::{Finding, Findings, Level};
use crate::host::{Host, Purpose};

/// Connections, watches, the store and the node want as many.
const OPEN_ADVISED: u64 = 16 * 1024;
/// The kernel's default of 128 instances is used up by a few dozen pods.
const INSTANCES_ADVISED: u64 = 512;
/// The kernel's old default of 8192 watches is used up by one program that follows a tree of files.
const WATCHES_ADVISED: u64 = 65_536;

/// Limits; `None` where the kernel does not say, or has none.
#[derive(Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// The hard limit of this process.
    pub open_max: Option<u64>,
    /// The value of `fs.inotify.max_user_instances`.
    pub instances_max: Option<u64>,
    /// The value of `fs.inotify.max_user_watches`.
    pub watches_max: Option<u64>,
}

/// Reads the limits from `/proc`.
pub fn read(host: &Host) -> FileFacts {
    let limits = host.text("/proc/self/limits");
    let open = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap_or_default();
    let number = |path: &str| host.text(path).trim().parse().ok();
    FileFacts {
        open_max: open.split_whitespace().nth(1).and_then(|hard| hard.parse().ok()),
        instances_max: number("/proc/sys/fs/inotify/max_user_instances"),
        watches_max: number("/proc/sys/fs/inotify/max_user_watches"),
    }
}

/// Returns findings about limits that are too low.
pub fn find(facts: &FileFacts, purpose: &Purpose) -> Vec<Finding> {
    let mut findings = Findings::of("files");
    if let Some(limit) = facts.open_max.filter(|limit| *limit < OPEN_ADVISED) {
        findings.add(
            Level::Warning,
            format!("{limit} files may be open"),
            "Connections fail when the limit is reached; a server with many clients reaches it.",
            format!("Raise the hard limit to {OPEN_ADVISED} or more: ulimit -Hn, or LimitNOFILE= of the unit."),
        );
    }
    let rows = [
        (
            facts.instances_max,
            INSTANCES_ADVISED,
            "max_user_instances",
            "Programs in pods, and kubectl logs -f, fail with \"too many open files\".",
        ),
        (
            facts.watches_max,
            WATCHES_ADVISED,
            "max_user_watches",
            "Programs in pods that follow many files fail with \"no space left on device\".",
        ),
    ];
    for (limit, advised, name, meaning) in rows {
        if let Some(limit) = limit.filter(|limit| purpose.node && *limit < advised) {
            let action = format!("sysctl -w fs.inotify.{name}={advised}, and a file in /etc/sysctl.d");
            findings.add(Level::Warning, format!("fs.inotify.{name} is {limit}"), meaning, action);
        }
    }
    let open = facts.open_max.map_or_else(|| "any number of".to_owned(), |limit| limit.to_string());
    findings.or_ok(|| format!("{open} files may be open"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{control_plane, levels, machine, purpose};

    #[test]
    fn low_limits_are_named() {
        let limits = |hard: &str| {
            let text = format!(
                "Limit   Soft Limit  Hard Limit  Units\nMax open files            1024                 {hard}              files\n"
            );
            let files = [
                ("/proc/self/limits", text.as_str()),
                ("/proc/sys/fs/inotify/max_user_instances", "128\n"),
                ("/proc/sys/fs/inotify/max_user_watches", "1048576\n"),
            ];
            let (_dir, host) = machine(&files, &[]);
            read(&host)
        };
        assert_eq!(levels(&find(&limits("4096"), &purpose())), [Level::Warning, Level::Warning]);
        assert_eq!(levels(&find(&limits("1048576"), &control_plane())), [Level::Ok]);
        assert_eq!(limits("unlimited").open_max, None);
    }
}
