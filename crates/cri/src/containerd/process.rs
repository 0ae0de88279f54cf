//! One containerd process, started in a separate process group or found running, and watched through a pidfd. Its log
//! goes to a file of bounded size, not to a pipe, so that it can outlive this process.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: in the lane for files, but for the start of containerd itself"
)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::ContainerdError;
use super::config::ContainerdConfig;

/// The size at which the log is rotated; with the rotated one, at most twice this is used.
const LOG_BYTES_MAX: u64 = 10 << 20;
/// The time that a process may take to end after SIGKILL. Longer means that it hangs in the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// The size of the log's tail in an error.
const LOG_TAIL_BYTES: u64 = 2048;
/// The time that containerd may take to end after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A running containerd.
pub(crate) struct Process {
    pid: Pid,
    pidfd: AsyncFd<OwnedFd>,
    /// Our child process; `None` for one that an earlier server started.
    child: Option<std::process::Child>,
}

impl Process {
    /// Starts containerd with the configuration file.
    pub fn start(program: &Path, config: &ContainerdConfig) -> Result<Self, ContainerdError> {
        let log = open_log(&config.log())?;
        let log_too = log.try_clone().map_err(ContainerdError::io("share the log file"))?;
        let child = Command::new(program)
            .arg("--config")
            .arg(config.file())
            .current_dir(config.dir())
            // A Ctrl-C on our terminal must not reach it.
            .process_group(0)
            // Otherwise it would notify our service manager as if it were this process.
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_too)
            .spawn()
            .map_err(ContainerdError::io(format!("start {}", program.display())))?;
        let pid = Pid::from_child(&child);
        Ok(Self { pid, pidfd: open_pidfd(pid)?, child: Some(child) })
    }

    /// Returns the running containerd with exactly this configuration file. Inspects all processes instead of a pid
    /// file: that can be lost or outdated, a command line cannot.
    pub fn find(config: &ContainerdConfig) -> Result<Option<Self>, ContainerdError> {
        let file = config.file();
        let wanted = [b"--config".as_slice(), file.as_os_str().as_encoded_bytes()];
        let is_ours = |pid| is_program(pid, |program| program == b"containerd", &wanted);
        Ok(pids()?.into_iter().find_map(|pid| Self::if_still(pid, is_ours)))
    }

    /// Returns the process with this ID, if `is_it` is true both before and after it was opened: in between it may have
    /// ended and its ID been reused.
    pub fn if_still(pid: Pid, is_it: impl Fn(Pid) -> bool) -> Option<Self> {
        if !is_it(pid) {
            return None;
        }
        let pidfd = open_pidfd(pid).ok()?;
        is_it(pid).then_some(Self { pid, pidfd, child: None })
    }

    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits until the process has ended; returns how, if that is known.
    pub async fn ended(&mut self) -> String {
        // A pidfd becomes readable when its process ends.
        if let Err(e) = self.pidfd.readable().await {
            tracing::error!(error = %e, "watching the containerd process failed");
        }
        match self.child.as_mut().map(std::process::Child::wait) {
            Some(Ok(status)) => format!("ended ({status})"),
            Some(Err(e)) => format!("ended ({e})"),
            None => "ended".to_owned(),
        }
    }

    /// Sends SIGTERM, and SIGKILL if the process does not end in time. Containers continue to run.
    pub async fn stop(&mut self) {
        self.signal(Signal::TERM);
        if tokio::time::timeout(STOP_TIMEOUT, self.ended()).await.is_err() {
            tracing::warn!(pid = self.pid(), "containerd did not exit after SIGTERM; killing it");
            self.signal(Signal::KILL);
            self.ended().await;
        }
    }

    /// Sends SIGKILL; returns whether the process has ended within `limit`.
    pub async fn kill(&mut self, limit: Duration) -> bool {
        self.signal(Signal::KILL);
        tokio::time::timeout(limit, self.ended()).await.is_ok()
    }

    fn signal(&self, signal: Signal) {
        // Through the pidfd: never another process with the same ID.
        match pidfd_send_signal(self.pidfd.get_ref(), signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(e) => tracing::warn!(pid = self.pid(), error = %e, "signalling containerd failed"),
        }
    }
}

fn open_pidfd(pid: Pid) -> Result<AsyncFd<OwnedFd>, ContainerdError> {
    let what = || format!("watch process {pid:?}");
    let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK).map_err(|e| ContainerdError::io(what())(e.into()))?;
    // SAFETY: an `OwnedFd` returns the same descriptor as long as it lives and keeps it open until it is dropped, which
    // `AsyncFd`, its owner from here on, does only after it has deregistered it.
    #[allow(unsafe_code)]
    let registered = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
    registered.map_err(|e| ContainerdError::io(what())(e.into()))
}

/// Kills processes concurrently and waits for their end; returns which did not end.
pub(crate) async fn kill_all(processes: Vec<(String, Process)>) -> Vec<String> {
    let ends = processes.into_iter().map(|(what, mut process)| async move {
        tracing::info!(pid = process.pid(), what, "killed a leftover process");
        let gone = process.kill(KILL_LIMIT).await;
        (!gone).then(|| format!("{what} (process {}) does not exit", process.pid()))
    });
    futures::future::join_all(ends).await.into_iter().flatten().collect()
}

/// Returns every process of this machine.
pub(super) fn pids() -> Result<Vec<Pid>, ContainerdError> {
    let entries = std::fs::read_dir("/proc").map_err(ContainerdError::io("list processes"))?;
    let number = |name: std::ffi::OsString| name.to_str().and_then(|n| n.parse().ok()).and_then(Pid::from_raw);
    Ok(entries.flatten().filter_map(|entry| number(entry.file_name())).collect())
}

/// Reports whether a process runs a program with this name and with these consecutive words on its command line.
pub(super) fn is_program(pid: Pid, is_name: impl Fn(&[u8]) -> bool, wanted: &[&[u8]]) -> bool {
    let Ok(line) = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())) else { return false };
    let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
    let program = words.first().and_then(|w| w.rsplit(|b| *b == b'/').next());
    program.is_some_and(is_name) && words.windows(wanted.len()).any(|w| w == wanted)
}

fn open_log(path: &Path) -> Result<File, ContainerdError> {
    let open = || -> io::Result<File> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        // Opened for appending, so that truncating the file below leaves no hole.
        OpenOptions::new().create(true).append(true).open(path)
    };
    open().map_err(ContainerdError::io(format!("open {}", path.display())))
}

/// Copies a log that has grown too large to `…log.1` and truncates it: the process keeps its open file.
pub(crate) fn rotate_log(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(meta) if meta.len() > LOG_BYTES_MAX => {
            std::fs::copy(path, path.with_extension("log.1"))?;
            OpenOptions::new().write(true).open(path)?.set_len(0)
        }
        _ => Ok(()),
    }
}

/// Returns the last lines of the log.
pub(crate) fn log_tail(path: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_log_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("containerd.log");
        std::fs::write(&path, vec![b'x'; LOG_BYTES_MAX as usize + 1]).unwrap();
        rotate_log(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        assert!(dir.path().join("containerd.log.1").exists());
        rotate_log(&dir.path().join("none.log")).unwrap();
    }

    #[test]
    fn the_tail_is_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        std::fs::write(&path, format!("{}end", "x".repeat(5000))).unwrap();
        assert!(log_tail(&path).ends_with("xend") && log_tail(&path).len() == LOG_TAIL_BYTES as usize);
    }
}
