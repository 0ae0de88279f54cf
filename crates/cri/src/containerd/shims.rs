//! Shims that a sandbox left behind: containerd loses one when it is stopped while it creates or removes the sandbox,
//! and then nothing stops the shim. They are found by the socket on their command line and by the bundles in
//! containerd's state directory, and killed with everything that runs below them.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use kelson_tasks::FILES;
use rustix::process::Pid;

use super::process::{Process, is_program, kill_all, pids};
use super::{ContainerdConfig, ContainerdError};

/// The directory of a shim's files in containerd 1.x and 2.x, with `NAMESPACE/ID` below it.
const BUNDLES: &str = "io.containerd.runtime.v2.task";
/// The number of searches: a shim that was just being started is found by the next one.
const ROUNDS_MAX: usize = 5;

/// A shim's bundle in containerd's state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bundle {
    /// The ID of the sandbox or container.
    id: String,
    /// The shim's socket, which is outside of our directory.
    socket: Option<PathBuf>,
    /// The container's first process.
    init: Option<Pid>,
}

/// Kills all shims of this containerd, which must not run any more, and what runs below them; removes their sockets.
/// Continues after errors and returns them.
pub(super) async fn end_all(config: &ContainerdConfig) -> Vec<String> {
    let (state, socket) = (config.dir().join("state"), config.socket());
    let read = state.clone();
    let bundles = FILES.run(move || bundles(&read)).await.unwrap_or_default();
    let mut errors = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let (socket, bundles) = (socket.clone(), bundles.clone());
        match FILES.run(move || left(&socket, &bundles)).await {
            Ok(Ok(left)) if left.is_empty() => break,
            Ok(Ok(left)) => errors = kill_all(left).await,
            Ok(Err(e)) => return vec![e.to_string()],
            Err(e) => return vec![e.to_string()],
        }
    }
    let sockets = bundles.into_iter().filter_map(|bundle| bundle.socket).collect();
    let removed = FILES.run(move || remove_sockets(sockets)).await;
    errors.extend(removed.unwrap_or_else(|e| vec![e.to_string()]));
    errors
}

/// Returns the shims of the containerd at `socket`, what runs below them, and first processes of containers whose shim
/// is gone.
fn left(socket: &Path, bundles: &[Bundle]) -> Result<Vec<(String, Process)>, ContainerdError> {
    let wanted = [b"-address".as_slice(), socket.as_os_str().as_encoded_bytes()];
    let is_shim = |pid| is_program(pid, |name| name.starts_with(b"containerd-shim"), &wanted);
    let all = pids()?;
    let parents: HashMap<Pid, Pid> = all.iter().filter_map(|pid| Some((*pid, parent(*pid)?))).collect();
    let shims: HashSet<Pid> = all.iter().copied().filter(|pid| is_shim(*pid)).collect();
    let mut out = Vec::new();
    for pid in &all {
        if shims.contains(pid) {
            out.extend(Process::if_still(*pid, is_shim).map(|p| ("shim".to_owned(), p)));
        } else if below(*pid, &parents, &shims) {
            // It is the same process if it still has the parent by which it was found.
            let is_same = |pid| parent(pid) == parents.get(&pid).copied();
            out.extend(Process::if_still(*pid, is_same).map(|p| ("process of a container".to_owned(), p)));
        }
    }
    for bundle in bundles {
        let Some(init) = bundle.init.filter(|init| !parents.contains_key(init) || !below(*init, &parents, &shims))
        else {
            continue;
        };
        let is_init = |pid: Pid| {
            let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero()));
            cgroup.is_ok_and(|text| is_in_cgroup_of(&text, &bundle.id))
        };
        out.extend(Process::if_still(init, is_init).map(|p| (format!("container {}", bundle.id), p)));
    }
    Ok(out)
}

/// Reports whether a process is a descendant of a shim. Shims are subreapers: orphaned processes of a container become
/// their children.
fn below(pid: Pid, parents: &HashMap<Pid, Pid>, shims: &HashSet<Pid>) -> bool {
    // A chain is not longer than the number of processes; the bound is for a table that changed while it was read.
    std::iter::successors(Some(pid), |pid| parents.get(pid).copied())
        .take(parents.len() + 1)
        .any(|p| shims.contains(&p))
}

/// Returns the parent, from `/proc/PID/stat`: the second field after the name, which may contain spaces and brackets.
fn parent(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok().and_then(Pid::from_raw)
}

/// Reports whether `/proc/PID/cgroup` shows the cgroup of this container: a process ID alone may have been reused since
/// it was stored.
fn is_in_cgroup_of(cgroup: &str, id: &str) -> bool {
    !id.is_empty() && cgroup.lines().any(|line| line.split(['/', ':', '-', '.']).any(|part| part == id))
}

/// Returns the bundles in the state directory, complete or not.
fn bundles(state: &Path) -> Vec<Bundle> {
    let dirs = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    dirs(state.join(BUNDLES)).flat_map(dirs).map(|dir| bundle(&dir)).collect()
}

fn bundle(dir: &Path) -> Bundle {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    // 1.x writes only the address, 2.x writes other fields as well.
    let address = read("bootstrap.json").and_then(|text| {
        let value: serde_json::Value = serde_json::from_str(&text).ok()?;
        Some(value.get("address")?.as_str()?.to_owned())
    });
    let address = address.or_else(|| read("address"));
    let socket = address.and_then(|a| a.trim().strip_prefix("unix://").map(PathBuf::from));
    Bundle {
        id: dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        socket: socket.filter(|path| path.is_absolute()),
        init: read("init.pid").and_then(|text| text.trim().parse().ok()).and_then(Pid::from_raw),
    }
}

/// Removes sockets that no process listens on any more.
fn remove_sockets(sockets: Vec<PathBuf>) -> Vec<String> {
    let mut errors = Vec::new();
    for path in sockets {
        let is_socket = std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.file_type().is_socket());
        if !is_socket || std::os::unix::net::UnixStream::connect(&path).is_ok() {
            continue;
        }
        if let Err(e) = std::fs::remove_file(&path) {
            errors.push(format!("remove {}: {e}", path.display()));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use super::*;

    /// Starts a process that looks like a shim of the containerd at `socket`, with a child like that of a container. It
    /// ignores SIGTERM.
    fn shim(socket: &Path) -> Child {
        Command::new("sh")
            .arg0("/usr/bin/containerd-shim-runc-v2")
            .args(["-c", "trap '' TERM; sleep 600; true", "-namespace", "k8s.io", "-id", "abc", "-address"])
            .arg(socket)
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Waits until the shell has started its child.
    fn child_of(parent_pid: u32) -> Pid {
        let begun = std::time::Instant::now();
        loop {
            let found = pids()
                .unwrap()
                .into_iter()
                .find(|p| parent(*p).is_some_and(|of| of.as_raw_nonzero().get().cast_unsigned() == parent_pid));
            if let Some(pid) = found {
                return pid;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "the process has no child");
            std::thread::yield_now();
        }
    }

    fn config(dir: &Path) -> ContainerdConfig {
        ContainerdConfig::new(dir).unwrap()
    }

    #[tokio::test]
    async fn shims_go_with_what_runs_below_them_and_others_stay() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let ours = config(dir.path());
        let (mut shim_of_ours, mut shim_of_others) = (shim(&ours.socket()), shim(&config(other.path()).socket()));
        let container = child_of(shim_of_ours.id());
        child_of(shim_of_others.id());
        // A zombie still has a pidfd; it counts as ended.
        assert_eq!(end_all(&ours).await, Vec::<String>::new());
        assert!(!shim_of_ours.wait().unwrap().success());
        let state = std::fs::read_to_string(format!("/proc/{}/stat", container.as_raw_nonzero()));
        assert!(state.is_err() || state.is_ok_and(|s| s.contains(") Z ")), "the container's process has ended");
        assert!(shim_of_others.try_wait().unwrap().is_none(), "another containerd's shim goes on");
        // Its child would outlive it.
        let theirs = child_of(shim_of_others.id());
        rustix::process::kill_process(theirs, rustix::process::Signal::KILL).unwrap();
        shim_of_others.kill().unwrap();
        shim_of_others.wait().unwrap();
    }

    #[tokio::test]
    async fn sockets_of_shims_that_are_gone_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let ours = config(dir.path());
        let bundle = |id: &str| {
            let dir = ours.dir().join("state").join(BUNDLES).join("k8s.io").join(id);
            std::fs::create_dir_all(&dir).unwrap();
            dir
        };
        let paths = ["one", "two", "live"].map(|name| dir.path().join(name));
        let listeners = paths.each_ref().map(|path| UnixListener::bind(path).unwrap());
        std::fs::write(bundle("one").join("address"), format!("unix://{}\n", paths[0].display())).unwrap();
        let bootstrap = serde_json::json!({"version": 3, "address": format!("unix://{}", paths[1].display())});
        std::fs::write(bundle("two").join("bootstrap.json"), bootstrap.to_string()).unwrap();
        std::fs::write(bundle("three").join("address"), format!("unix://{}", paths[2].display())).unwrap();
        // An incomplete bundle: nothing is written yet.
        bundle("four");
        let [_one, _two, live] = listeners;
        drop((_one, _two));
        assert_eq!(end_all(&ours).await, Vec::<String>::new());
        assert_eq!(paths.each_ref().map(|path| path.exists()), [false, false, true], "somebody listens on the last");
        drop(live);
    }

    #[test]
    fn a_number_alone_is_not_a_container() {
        let id = "3f2a";
        for (cgroup, expected) in [
            ("0::/kelson-1/kubepods/pod9/3f2a\n", true),
            ("0::/kubepods.slice/cri-containerd-3f2a.scope\n", true),
            ("0::/system.slice/ssh.service\n", false),
            ("0::/x3f2a\n", false),
        ] {
            assert_eq!(is_in_cgroup_of(cgroup, id), expected, "{cgroup}");
        }
        assert!(!is_in_cgroup_of("0::/\n", ""));
    }
}
