//! What is collected from the machine: programs that are asked, files that are read, each within a limit.
#![allow(clippy::disallowed_methods, reason = "blocking: by a command that does nothing else")]

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use thiserror::Error;

use super::archive::ENTRY_BYTES_MAX;

/// The time that a program may take.
const PROGRAM_MAX: Duration = Duration::from_secs(15);
/// Lines of the journal that are read.
const LOG_LINES: &str = "50000";
/// The limit of listed names in the data directory.
const NAMES_MAX: usize = 5000;
const NAMES_DEPTH: usize = 3;

/// Files of the machine, by their name in the bundle.
pub const FILES: &[(&str, &str)] = &[
    ("host/os-release.txt", "/etc/os-release"),
    ("host/kernel.txt", "/proc/version"),
    ("host/kernel-command-line.txt", "/proc/cmdline"),
    ("host/mounts.txt", "/proc/self/mountinfo"),
    ("host/memory.txt", "/proc/meminfo"),
    ("host/load.txt", "/proc/loadavg"),
    ("host/pressure-cpu.txt", "/proc/pressure/cpu"),
    ("host/pressure-io.txt", "/proc/pressure/io"),
    ("host/pressure-memory.txt", "/proc/pressure/memory"),
    ("host/modules.txt", "/proc/modules"),
    ("host/cgroups.txt", "/proc/cgroups"),
    ("host/cgroup-controllers.txt", "/sys/fs/cgroup/cgroup.controllers"),
    ("host/resolv.conf", "/etc/resolv.conf"),
    ("network/forwarding.txt", "/proc/sys/net/ipv4/ip_forward"),
    ("network/tcp.txt", "/proc/net/sockstat"),
    ("network/conntrack.txt", "/proc/sys/net/netfilter/nf_conntrack_count"),
];

/// Programs of the machine, by the name of their output in the bundle.
pub const PROGRAMS: &[(&str, &[&str])] = &[
    ("network/addresses.txt", &["ip", "-d", "address"]),
    ("network/routes.txt", &["ip", "route", "show", "table", "all"]),
    ("network/rules.txt", &["ip", "rule"]),
    ("network/neighbors.txt", &["ip", "neighbor"]),
    ("network/nftables.txt", &["nft", "list", "ruleset"]),
    ("network/iptables.txt", &["iptables-save"]),
    ("versions/containerd.txt", &["containerd", "--version"]),
    ("versions/runc.txt", &["runc", "--version"]),
    ("versions/nft.txt", &["nft", "--version"]),
];

/// Why something of the machine is not in the bundle.
#[derive(Debug, Error)]
pub enum CollectError {
    /// A file cannot be read, or a program cannot be started.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A program did not end in time.
    #[error("no end within {} s", .0.as_secs())]
    Late(Duration),
    /// A program failed without output.
    #[error("{status}: {said}")]
    Failed {
        /// The exit status.
        status: ExitStatus,
        /// Its standard error.
        said: String,
    },
}

/// Returns the output of a program, also if the program fails.
///
/// # Errors
/// Returns why there is no output.
pub async fn output(words: &[&str]) -> Result<String, CollectError> {
    let mut command = tokio::process::Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(PROGRAM_MAX, command.output()).await {
        Ok(output) => output?,
        Err(_) => return Err(CollectError::Late(PROGRAM_MAX)),
    };
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match output.status.success() {
        true => Ok(text.into_owned()),
        false if text.is_empty() => Err(CollectError::Failed { status: output.status, said: said.into_owned() }),
        false => Ok(format!("{text}\n{}: {said}", output.status)),
    }
}

/// The end of a file.
///
/// # Errors
/// The system's.
pub fn file(path: &Path) -> Result<String, CollectError> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut from = File::open(path)?;
        let about = from.metadata()?;
        let max = ENTRY_BYTES_MAX as u64;
        if about.is_file() && about.len() > max {
            from.seek(SeekFrom::Start(about.len() - max))?;
        }
        let mut bytes = Vec::new();
        from.take(max).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    Ok(String::from_utf8_lossy(&read()?).into_owned())
}

/// The location of a service's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Log {
    /// A file that the service appends to.
    File(PathBuf),
    /// The journal of a unit.
    Journal(String),
}

impl Log {
    /// Its name in the bundle.
    pub fn name(&self) -> String {
        match self {
            Self::File(file) => format!("logs/{}", file.file_name().unwrap_or_default().to_string_lossy()),
            Self::Journal(unit) => format!("logs/{unit}.log"),
        }
    }

    /// Its last lines.
    ///
    /// # Errors
    /// Why there are none.
    pub async fn read(&self) -> Result<String, CollectError> {
        match self {
            Self::File(path) => file(path),
            Self::Journal(unit) => {
                output(&["journalctl", "--unit", unit, "--no-pager", "--output", "short-iso", "--lines", LOG_LINES])
                    .await
            }
        }
    }
}

/// The logs of a service and of its container runtime.
pub fn logs(dir: &Path, pid: Option<u32>, unit: Option<String>, role: &str) -> Vec<Log> {
    let mut logs: Vec<Log> = unit.into_iter().map(Log::Journal).collect();
    // Where standard error goes to a file, as from OpenRC or a shell.
    let stderr = pid.and_then(|pid| std::fs::read_link(format!("/proc/{pid}/fd/2")).ok());
    logs.extend(stderr.filter(|path| path.is_file()).map(Log::File));
    logs.push(Log::File(format!("/var/log/kelson-{role}.log").into()));
    let own = std::fs::read_dir(dir.join("log")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut own: Vec<PathBuf> = own.filter(|path| path.is_file()).collect();
    own.sort();
    logs.extend(own.into_iter().map(Log::File));
    logs.dedup();
    logs.into_iter().filter(|log| !matches!(log, Log::File(path) if !path.is_file())).collect()
}

/// Names, sizes and modes below a directory; no content.
pub fn names(dir: &Path) -> String {
    let mut text = String::new();
    let mut count = 0;
    list(dir, 0, &mut count, &mut text);
    if count >= NAMES_MAX {
        let _ = writeln!(text, "… more than {NAMES_MAX}");
    }
    text
}

fn list(dir: &Path, depth: usize, count: &mut usize, text: &mut String) {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let Ok(about) = std::fs::symlink_metadata(&path) else { continue };
        if *count >= NAMES_MAX {
            return;
        }
        *count += 1;
        let mode = about.permissions().mode() & 0o7777;
        let _ = writeln!(text, "{mode:04o} {:>5} {:>12} {}", about.uid(), about.len(), path.display());
        if about.is_dir() && depth + 1 < NAMES_DEPTH {
            list(&path, depth + 1, count, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_without_contents() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("pki/deep/deeper/deepest")).unwrap();
        std::fs::write(dir.path().join("pki/ca.key"), "content of the key").unwrap();
        let text = names(dir.path());
        assert!(text.contains("pki/ca.key") && text.contains("pki/deep/deeper"), "{text}");
        assert!(!text.contains("deepest") && !text.contains("content of"), "{text}");
    }

    #[tokio::test]
    async fn what_fails_says_why() {
        assert_eq!(output(&["sh", "-c", "echo a"]).await.unwrap(), "a\n");
        let broken = output(&["sh", "-c", "echo broken >&2; exit 3"]).await.unwrap_err();
        assert!(broken.to_string().contains("broken"), "{broken}");
        assert!(output(&["no-such-program"]).await.is_err());
        assert!(file(Path::new("/no/such/file")).is_err());
    }

    #[test]
    fn logs_are_found_where_a_service_writes_them() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("log")).unwrap();
        std::fs::write(dir.path().join("log/containerd.log"), "x").unwrap();
        let found = logs(dir.path(), None, Some("kelson-server.service".to_owned()), "role-that-is-not-there");
        let names: Vec<String> = found.iter().map(Log::name).collect();
        assert_eq!(names, ["logs/kelson-server.service.log", "logs/containerd.log"]);
    }
}
