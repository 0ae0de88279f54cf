//! Processes that a runtime left in the cgroups of its containers. The first process of a container that was created
//! and never started waits indefinitely; when its shim is gone, nothing ends it, and its cgroup cannot be removed.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::{Path, PathBuf};

use kelson_tasks::FILES;
use rustix::process::{Pid, getpid};

use crate::containerd::process::{Process, kill_all};

/// The number of searches: a process that was just being started is found by the next one.
const ROUNDS_MAX: usize = 5;

/// Kills every process in these cgroups and in those below them, and waits until they have ended. For cgroups whose
/// containers should have ended. Returns which processes remain; a missing cgroup has none.
pub async fn end_in_cgroups(trees: Vec<PathBuf>) -> Vec<String> {
    let mut errors = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let trees = trees.clone();
        match FILES.run(move || left(&trees)).await {
            Ok(left) if left.is_empty() => break,
            Ok(left) => errors = kill_all(left).await,
            Err(e) => return vec![e.to_string()],
        }
    }
    errors
}

/// Returns the processes, each with a pidfd, so that its ID cannot be reused.
fn left(trees: &[PathBuf]) -> Vec<(String, Process)> {
    let mut out = Vec::new();
    let mut dirs = trees.to_vec();
    while let Some(dir) = dirs.pop() {
        for pid in members(&dir) {
            // The tools that call this may have been started in such a cgroup.
            if pid != getpid()
                && let Some(process) = Process::if_still(pid, |pid| members(&dir).contains(&pid) && !is_zombie(pid))
            {
                out.push((format!("process in cgroup {}", dir.display()), process));
            }
        }
        let below = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        dirs.extend(below.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    }
    out
}

/// Returns the processes of one cgroup. Those of another PID namespace are listed as 0 and left out.
fn members(cgroup: &Path) -> Vec<Pid> {
    let text = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).filter_map(Pid::from_raw).collect()
}

/// Reports whether the process has ended and only waits to be reaped: it holds no cgroup.
fn is_zombie(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('Z'))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").spawn().unwrap()
    }

    #[tokio::test]
    async fn what_is_left_in_a_tree_ends_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("kubepods/besteffort/pod1/container");
        std::fs::create_dir_all(&deep).unwrap();
        let (mut inside, mut above, mut outside) = (sleeper(), sleeper(), sleeper());
        std::fs::write(deep.join("cgroup.procs"), format!("0\n{}\n", inside.id())).unwrap();
        let own = std::process::id();
        std::fs::write(dir.path().join("cgroup.procs"), format!("{}\n{own}\nnonsense\n", above.id())).unwrap();

        let errors = end_in_cgroups(vec![dir.path().to_owned(), dir.path().join("absent")]).await;

        assert_eq!(errors, Vec::<String>::new());
        for child in [&mut inside, &mut above] {
            assert_eq!(child.wait().unwrap().signal(), Some(9));
        }
        assert!(outside.try_wait().unwrap().is_none(), "a process of another cgroup goes on");
        outside.kill().unwrap();
        outside.wait().unwrap();
    }
}
