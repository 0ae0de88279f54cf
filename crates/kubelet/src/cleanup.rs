//! Removes mounts and cgroups that a kubelet left on the host. For a node whose containers are already gone.
#![allow(clippy::disallowed_methods, reason = "blocking: `kelson cleanup` does nothing else meanwhile")]

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use kelson_cri::leftovers::end_in_cgroups;
use kelson_cri::proto::PodSandbox;

use crate::cgroups::name::CgroupName;
use crate::config::cgroups::CgroupDriver;
use crate::runtime::labels;
use crate::volumes::mounts::{KernelMounts, Mounts as _};

/// Mount point of the cgroup hierarchies: one (v2), or one per controller (v1), possibly with a v2 hierarchy.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Unmounts everything below `root_dir`, kills the processes in the cgroups named `cgroup_root`, and removes these cgroups. Continues after
/// errors and returns one message per error.
pub async fn cleanup(root_dir: &Path, cgroup_root: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let root_dir = root_dir.canonicalize().unwrap_or_else(|_| root_dir.to_owned());
    for mount in KernelMounts.below(&root_dir) {
        if let Err(e) = KernelMounts.unmount(&mount) {
            errors.push(format!("cannot unmount {}: {e}", mount.display()));
        }
    }
    if !cgroup_root.is_empty() {
        let drivers = [CgroupDriver::Cgroupfs, CgroupDriver::Systemd];
        let names = drivers.map(|driver| CgroupName::parse(cgroup_root, driver).path(driver));
        let roots: Vec<PathBuf> =
            hierarchies().iter().flat_map(|tree| names.each_ref().map(|name| tree.join(name))).collect();
        errors.extend(end_in_cgroups(roots.clone()).await);
        for root in roots {
            if let Err(e) = remove_tree(&root) {
                errors.push(format!("cannot remove cgroup {}: {e}", root.display()));
            }
        }
    }
    errors
}

/// Returns a predicate: whether the kubelet of `root_dir` created a sandbox. It reads the sandbox's annotation, or, for sandboxes of
/// earlier versions, compares with the pod directories below `root_dir`.
pub fn own_sandboxes(root_dir: &Path) -> impl Fn(&PodSandbox) -> bool + use<> {
    let names = |dir: &str| -> Vec<String> {
        let entries = std::fs::read_dir(root_dir.join(dir)).into_iter().flatten().flatten();
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
    };
    // The directory's name is `NAMESPACE_NAME_UID`; a UID has no underscore.
    let logs = names("pod-logs").into_iter().filter_map(|name| Some(name.rsplit_once('_')?.1.to_owned()));
    let uids: HashSet<String> = names("pods").into_iter().chain(logs).collect();
    let own = root_dir.display().to_string();
    move |sandbox| match sandbox.annotations.get(labels::NODE_DIRECTORY) {
        Some(directory) => *directory == own,
        None => sandbox.labels.get(labels::POD_UID).is_some_and(|uid| uids.contains(uid)),
    }
}

fn hierarchies() -> Vec<PathBuf> {
    let below = std::fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|e| e.path());
    std::iter::once(PathBuf::from(CGROUPS)).chain(below.filter(|p| p.is_dir() && !p.is_symlink())).collect()
}

/// Removes a cgroup and its children, deepest first. The kernel removes the files of a cgroup itself. A busy child also keeps its parents
/// busy, so one error is reported for the whole tree.
fn remove_tree(dir: &Path) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for child in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        remove_tree(&child.path())?;
    }
    std::fs::remove_dir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_of_other_nodes_are_distinguished() {
        let dir = tempfile::tempdir().expect("a directory");
        for own in ["pods/u-running", "pod-logs/ns_name_u-ended"] {
            std::fs::create_dir_all(dir.path().join(own)).expect("made");
        }
        let own = own_sandboxes(dir.path());
        let here = dir.path().display().to_string();
        for (uid, directory, expected) in [
            ("u-running", None, true),
            ("u-ended", None, true),
            ("u-stranger", None, false),
            ("u-new", Some(here.as_str()), true),
            ("u-running", Some("/var/lib/another"), false),
        ] {
            let annotations =
                directory.map(|d| (labels::NODE_DIRECTORY.to_owned(), d.to_owned())).into_iter().collect();
            let labels = [(labels::POD_UID.to_owned(), uid.to_owned())].into();
            assert_eq!(own(&PodSandbox { labels, annotations, ..Default::default() }), expected, "{uid} {directory:?}");
        }
    }
}
