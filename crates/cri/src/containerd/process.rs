//! One containerd process: started apart from our own process group, or found running; watched through a pidfd either
//! way. Its log goes to a file that is kept small, never to a pipe, so that it outlives us.
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

/// The log is put aside at this size; with the one kept, twice this is used at most.
const LOG_BYTES_MAX: u64 = 10 << 20;
/// How long one process may take to be gone after SIGKILL. Longer means that it hangs in the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// How much of the log an error shows.
const LOG_TAIL_BYTES: u64 = 2048;
/// How long containerd may take to end after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A containerd that runs.
pub(crate) struct Process {
    pid: Pid,
    pidfd: AsyncFd<OwnedFd>,
    /// Ours to reap; `None` for one that an earlier server started.
    child: Option<std::process::Child>,
}

impl Process {
    /// Starts containerd with the configuration's file.
    pub fn start(program: &Path, config: &ContainerdConfig) -> Result<Self, ContainerdError> {
        let log = open_log(&config.log())?;
        let log_too = log.try_clone().map_err(ContainerdError::io("share the log file"))?;
        let child = Command::new(program)
            .arg("--config")
            .arg(config.file())
            .current_dir(config.dir())
            // A Ctrl-C on our terminal is not for it.
            .process_group(0)
            // It would tell our service manager that it is ready, and that it lives.
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

    /// The containerd that runs with exactly this configuration file, whoever started it. Looks at every process
    /// rather than at a pid file: that can be lost or lie, a command line cannot.
    pub fn find(config: &ContainerdConfig) -> Result<Option<Self>, ContainerdError> {
        let file = config.file();
        let wanted = [b"--config".as_slice(), file.as_os_str().as_encoded_bytes()];
        let is_ours = |pid| is_program(pid, |program| program == b"containerd", &wanted);
        Ok(pids()?.into_iter().find_map(|pid| Self::if_still(pid, is_ours)))
    }

    /// The process with this number, if `is_it` says so before and after it was opened: in between it may have ended and
    /// its number been given away.
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

    /// Returns when the process has ended, saying how if that can be known.
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

    /// SIGTERM, and SIGKILL if that does not help in time. Containers go on.
    pub async fn stop(&mut self) {
        self.signal(Signal::TERM);
        if tokio::time::timeout(STOP_TIMEOUT, self.ended()).await.is_err() {
            tracing::warn!(pid = self.pid(), "containerd did not exit after SIGTERM; killing it");
            self.signal(Signal::KILL);
            self.ended().await;
        }
    }

    /// SIGKILL; returns when the process has ended, or after `limit` whether it has.
    pub async fn kill(&mut self, limit: Duration) -> bool {
        self.signal(Signal::KILL);
        tokio::time::timeout(limit, self.ended()).await.is_ok()
    }

    fn signal(&self, signal: Signal) {
        // Through the pidfd: never another process that got the number.
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

/// Kills processes and waits for their end, all at once; says which resist.
pub(crate) async fn kill_all(processes: Vec<(String, Process)>) -> Vec<String> {
    let ends = processes.into_iter().map(|(what, mut process)| async move {
        tracing::info!(pid = process.pid(), what, "killed a leftover process");
        let gone = process.kill(KILL_LIMIT).await;
        (!gone).then(|| format!("{what} (process {}) does not exit", process.pid()))
    });
    futures::future::join_all(ends).await.into_iter().flatten().collect()
}

/// Every process of this machine.
pub(super) fn pids() -> Result<Vec<Pid>, ContainerdError> {
    let entries = std::fs::read_dir("/proc").map_err(ContainerdError::io("list processes"))?;
    let number = |name: std::ffi::OsString| name.to_str().and_then(|n| n.parse().ok()).and_then(Pid::from_raw);
    Ok(entries.flatten().filter_map(|entry| number(entry.file_name())).collect())
}

/// Whether a process runs a program of this name with these words side by side on its command line.
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
        // Appending, so that emptying the file below leaves no hole.
        OpenOptions::new().create(true).append(true).open(path)
    };
    open().map_err(ContainerdError::io(format!("open {}", path.display())))
}

/// Copies a log that has grown too large to `…log.1` and empties it: the process keeps its open file.
pub(crate) fn rotate_log(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(meta) if meta.len() > LOG_BYTES_MAX => {
            std::fs::copy(path, path.with_extension("log.1"))?;
            OpenOptions::new().write(true).open(path)?.set_len(0)
        }
        _ => Ok(()),
    }
}

/// The last lines of the log.
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
