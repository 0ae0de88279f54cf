//! This process and its machine: limits, core files, its parent, what it uses.
use std::io;

#[cfg(target_os = "linux")]
use rustix::process::DumpableBehavior;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The hard limit of macOS may be none at all, and the kernel refuses more than this all the same.
const OPEN_FILES_ALWAYS_GIVEN: u64 = 10_240;

/// Keys and tokens are in this process's memory: no core file is written of it, and on Linux no other process of its user reads it.
///
/// # Errors
/// The system's.
pub fn keep_memory_private() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    #[cfg(not(target_os = "linux"))]
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum })?;
    Ok(())
}

/// Raises the limit of open files as far as it goes without privileges.
///
/// # Errors
/// The system's.
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

/// How many files may be open; `None`: any number.
pub fn open_files_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// The machine's name as it was given it.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The process that started this one, or whoever took its place when it ended. `None`: nobody, in the first process of a namespace.
pub fn parent() -> Option<u32> {
    rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok())
}

/// Whether the system says with [`parent`] that a parent has ended.
pub const KNOWS_PARENT: bool = true;

/// What this process uses. Reads memory of the kernel, no disk.
#[cfg(target_os = "linux")]
pub fn usage() -> crate::Usage {
    super::proc::usage()
}

/// What this process uses: nothing of it is said by files here.
#[cfg(not(target_os = "linux"))]
pub fn usage() -> crate::Usage {
    crate::Usage::default()
}

/// Identifies this boot of the machine; `None`: the system does not say.
pub fn boot_id() -> Option<String> {
    #[allow(clippy::disallowed_methods, reason = "blocking: the kernel's memory, no disk")]
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

/// Memory that this process may use: the machine's, or what its control groups allow where that is less. `None`: the system
/// does not say.
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

/// What `/proc/meminfo` says of the whole memory, in bytes.
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
            let told = [used.cpu_s, used.resident_bytes, used.virtual_bytes, used.open_files, used.started_s];
            assert!(told.iter().all(Option::is_some), "{used:?}");
            assert!(boot_id().is_some_and(|id| !id.is_empty()));
            assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
        }
    }
}
