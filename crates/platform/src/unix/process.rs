//! This process and its machine: limits, core files, the parent process and resource usage.
use std::io;

#[cfg(target_os = "linux")]
use rustix::process::DumpableBehavior;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The maximum on macOS, whose hard limit may be unlimited although the kernel rejects higher values.
const OPEN_FILES_ALWAYS_GIVEN: u64 = 10_240;

/// Protects keys and tokens in this process's memory: it writes no core file, and on Linux no other process of its
/// user can read its memory.
///
/// # Errors
/// Returns the error of the operating system.
pub fn keep_memory_private() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    #[cfg(not(target_os = "linux"))]
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum })?;
    Ok(())
}

/// Raises the limit of open files as far as possible without privileges.
///
/// # Errors
/// Returns the error of the operating system.
pub fn raise_open_files() -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return Ok(());
    }
    let raise = |to| setrlimit(Resource::Nofile, Rlimit { current: to, maximum });
    raise(maximum).or_else(|refused| match current {
        Some(current) if current < OPEN_FILES_ALWAYS_GIVEN => raise(Some(OPEN_FILES_ALWAYS_GIVEN)),
        _ => Err(refused),
    })?;
    Ok(())
}

/// Returns the limit of open files, or `None` if it is unlimited.
pub fn open_files_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Returns the host name as it was configured.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the parent process, or its replacement if the parent ended. Returns `None` in the first process of a PID
/// namespace.
pub fn parent() -> Option<u32> {
    rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok())
}

/// Whether [`parent`] shows on this system that the parent has ended.
pub const KNOWS_PARENT: bool = true;

/// Returns the resource usage of this process. Reads `/proc`, not a disk.
#[cfg(target_os = "linux")]
pub fn usage() -> crate::Usage {
    super::proc::usage()
}

/// Returns the resource usage of this process, which is unknown on this system.
#[cfg(not(target_os = "linux"))]
pub fn usage() -> crate::Usage {
    crate::Usage::default()
}

/// Returns the ID of this boot of the machine, or `None` if the system has none.
pub fn boot_id() -> Option<String> {
    #[allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk")]
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

/// Returns the bytes of memory that this process may use: the machine's, or less if its control groups have a limit.
/// Returns `None` if it is unknown.
pub fn memory_bytes() -> Option<u64> {
    #[allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk")]
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = memory_total(&read("/proc/meminfo")?)?;
    let group =
        read("/proc/self/cgroup").and_then(|text| Some(text.lines().find_map(|l| l.strip_prefix("0::"))?.to_owned()));
    let groups = group.iter().flat_map(|group| std::path::Path::new(group).ancestors());
    let limits = groups.filter_map(|group| {
        let limit = read(&format!("/sys/fs/cgroup{}/memory.max", group.display()))?;
        limit.trim().parse::<u64>().ok()
    });
    Some(limits.fold(machine, u64::min))
}

/// Returns the total memory from `/proc/meminfo` in bytes.
fn memory_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_goes_up_to_the_hard_one() {
        raise_open_files().unwrap();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert!(current == maximum || current == Some(OPEN_FILES_ALWAYS_GIVEN), "{current:?} {maximum:?}");
        assert_eq!(open_files_max(), current);
        raise_open_files().unwrap();
    }

    #[test]
    fn the_whole_memory_is_read() {
        assert_eq!(memory_total("MemTotal:        2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
        assert_eq!((memory_total(""), memory_total("MemTotal: x kB")), (None, None));
    }

    #[test]
    fn what_the_system_says_of_this_process() {
        assert!(!host_name().is_empty());
        assert_ne!(parent(), Some(std::process::id()));
        if cfg!(target_os = "linux") {
            let used = usage();
            let reported = [used.cpu_s, used.resident_bytes, used.virtual_bytes, used.open_files, used.started_s];
            assert!(reported.iter().all(Option::is_some), "{used:?}");
            assert!(boot_id().is_some_and(|id| !id.is_empty()));
            assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
        }
    }
}
