//! Unix: process groups, signals, and on Linux the parent death signal.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal};

/// Puts the child into a process group, so that a Ctrl-C on the terminal does not reach it, and has Linux kill it when the
/// thread that starts it ends. That thread must therefore live as long as the child should.
#[allow(unsafe_code)]
pub(crate) fn end_with_parent(command: &mut Command) {
    command.process_group(0);
    #[cfg(target_os = "linux")]
    {
        let parent = rustix::process::getpid();
        let ends_with_parent = move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended before the request.
            match rustix::process::getppid() == Some(parent) {
                true => Ok(()),
                false => Err(io::ErrorKind::BrokenPipe.into()),
            }
        };
        // SAFETY: the closure runs in the child between fork and exec, and makes two system calls without allocation or
        // locks, which is all that is allowed there.
        unsafe {
            command.pre_exec(ends_with_parent);
        }
    }
}

/// Sends SIGTERM.
///
/// # Errors
/// The system's; not when the process has ended already.
pub(crate) fn ask_to_end(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    match rustix::process::kill_process(pid, Signal::TERM) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Reports whether a path is a program.
#[allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]
pub(crate) fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}
