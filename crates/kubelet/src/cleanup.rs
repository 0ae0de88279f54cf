//! Removes what a kubelet left on the host outside its files: mounts below its directory and its cgroups. For a node
//! whose containers are gone already.
#![allow(clippy::disallowed_methods, reason = "blocking: `kelson cleanup` does nothing beside")]

use std::path::{Path, PathBuf};

use kelson_cri::leftovers::end_in_cgroups;

use crate::cgroups::name::CgroupName;
use crate::config::cgroups::CgroupDriver;
use crate::volumes::mounts::{KernelMounts, Mounts as _};

/// Where cgroup hierarchies are mounted: one (v2), or one per controller (v1) with, perhaps, a v2 tree beside.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Unmounts everything below `root_dir`, ends what still runs in the cgroups named `cgroup_root` and removes them. Goes on
/// past errors and returns them all as sentences; empty means clean.
pub async fn cleanup(root_dir: &Path, cgroup_root: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let root_dir = root_dir.canonicalize().unwrap_or_else(|_| root_dir.to_owned());
    for mount in KernelMounts.below(&root_dir) {
        if let Err(e) = KernelMounts.unmount(&mount) {
            errors.push(format!("unmount {}: {e}", mount.display()));
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
                errors.push(format!("remove cgroup {}: {e}", root.display()));
            }
        }
    }
    errors
}

fn hierarchies() -> Vec<PathBuf> {
    let below = std::fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|e| e.path());
    std::iter::once(PathBuf::from(CGROUPS)).chain(below.filter(|p| p.is_dir() && !p.is_symlink())).collect()
}

/// A cgroup goes by rmdir, children first; the files in it are not files. What holds a child holds its parents too: one
/// sentence says it for the whole tree.
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
