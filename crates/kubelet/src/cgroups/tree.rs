//! The kernel's tree of cgroups, as one mount (v2) or as one of each controller (v1).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

use std::io;
use std::path::{Path, PathBuf};

use super::bounds::{Bounds, CgroupFile};

/// How the kernel's tree is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    /// One tree; the mount point.
    Unified(PathBuf),
    /// One mount per controller; the directory of the mounts.
    Split(PathBuf),
}

/// Controllers of the split tree that pods get directories in.
const CONTROLLERS: &[&str] =
    &["cpu", "cpuacct", "memory", "pids", "cpuset", "blkio", "devices", "freezer", "hugetlb", "net_cls", "perf_event"];
/// Controllers without which a unified tree is of no use.
const NEEDED: &[&str] = &["cpu", "memory", "pids"];
/// Where the kernel says which huge pages it has.
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";

impl Tree {
    /// The tree in use: split where memory is a v1 controller, even beside a mounted but empty unified tree.
    ///
    /// # Errors
    /// What is missing.
    pub fn detect(mount: &Path) -> Result<Self, String> {
        if mount.join("memory").join("memory.limit_in_bytes").exists() || mount.join("memory/tasks").exists() {
            return Ok(Self::Split(mount.to_owned()));
        }
        let at = mount.display();
        let Ok(offered) = std::fs::read_to_string(mount.join("cgroup.controllers")) else {
            return Err(format!("no cgroup tree is mounted at {at}"));
        };
        let missing: Vec<&str> =
            NEEDED.iter().copied().filter(|n| offered.split_whitespace().all(|c| c != *n)).collect();
        if missing.is_empty() {
            return Ok(Self::Unified(mount.to_owned()));
        }
        let missing = missing.join(", ");
        Err(format!(
            "the cgroup v2 tree at {at} lacks the controllers {missing} (they may be bound to v1 hierarchies mounted elsewhere)"
        ))
    }

    /// Whether there is one tree for all controllers.
    pub fn is_unified(&self) -> bool {
        matches!(self, Self::Unified(_))
    }

    /// A file of the cgroup at `path`.
    pub fn file(&self, path: &str, controller: &str, name: &str) -> PathBuf {
        match self {
            Self::Split(mount) => mount.join(controller).join(path).join(name),
            Self::Unified(mount) => mount.join(path).join(name),
        }
    }

    /// Every directory that stands for the cgroup at `path`.
    pub fn directories(&self, path: &str) -> Vec<PathBuf> {
        match self {
            Self::Unified(mount) => vec![mount.join(path)],
            Self::Split(mount) => {
                let mut seen = std::collections::HashSet::new();
                let mounted = CONTROLLERS.iter().map(|c| mount.join(c)).filter(|d| d.exists());
                // `cpu` and `cpuacct` are usually one mount under two names.
                mounted.filter(|d| seen.insert(d.canonicalize().unwrap_or_default())).map(|d| d.join(path)).collect()
            }
        }
    }

    /// Makes the cgroup at `path` and all above it.
    pub fn make(&self, path: &str) -> io::Result<()> {
        match self {
            Self::Split(mount) => {
                for dir in self.directories(path) {
                    std::fs::create_dir_all(&dir)?;
                }
                copy_cpuset(&mount.join("cpuset"), path);
                Ok(())
            }
            Self::Unified(mount) => {
                let mut dir = mount.clone();
                for part in path.split('/') {
                    // Children get what their parent hands down.
                    let control = dir.join("cgroup.subtree_control");
                    for c in ["cpu", "memory", "pids", "cpuset", "io", "hugetlb"] {
                        let _ = std::fs::write(&control, format!("+{c}"));
                    }
                    dir.push(part);
                    if let Err(e) = std::fs::create_dir(&dir)
                        && e.kind() != io::ErrorKind::AlreadyExists
                    {
                        return Err(e);
                    }
                }
                Ok(())
            }
        }
    }

    /// Holds the cgroup at `path` to `bounds`, as far as the kernel lets it; the first failure.
    pub fn hold(&self, path: &str, bounds: &Bounds) -> io::Result<()> {
        let mut failed = None;
        for CgroupFile { controller, name, value } in bounds.files(self.is_unified()) {
            let file = self.file(path, controller, &name);
            if let Err(e) = std::fs::write(&file, &value) {
                // Not every kernel counts huge pages.
                if controller == "hugetlb" && e.kind() == io::ErrorKind::NotFound {
                    continue;
                }
                tracing::debug!(file = %file.display(), value, error = %e, "cgroup limit not set");
                failed.get_or_insert(io::Error::new(e.kind(), format!("write {value:?} to {}: {e}", file.display())));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// A bound as the kernel has it; `None` where there is none.
    pub fn bound(&self, path: &str, (controller, v1): (&str, &str), v2: &str) -> Option<i64> {
        let file = self.file(path, controller, if self.is_unified() { v2 } else { v1 });
        let text = std::fs::read_to_string(file).ok()?;
        text.split_whitespace().next()?.parse().ok().filter(|n: &i64| *n >= 0)
    }
}

/// A v1 cpuset takes no process before its CPUs and memory nodes are set: copy them down.
fn copy_cpuset(mount: &Path, path: &str) {
    let mut dir = mount.to_owned();
    for part in path.split('/') {
        let child = dir.join(part);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let own = std::fs::read_to_string(child.join(file)).unwrap_or_default();
            if own.trim().is_empty()
                && let Ok(above) = std::fs::read_to_string(dir.join(file))
            {
                let _ = std::fs::write(child.join(file), above.trim());
            }
        }
        dir = child;
    }
}

/// Removes a cgroup and what is below it. What is still busy is left.
pub fn remove(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for e in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        remove(&e.path());
    }
    if let Err(e) = std::fs::remove_dir(dir)
        && e.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(dir = %dir.display(), error = %e, "cgroup not removed");
    }
}

/// Sizes of the machine's huge pages, bytes.
pub fn page_sizes() -> Vec<i64> {
    let size = |name: String| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<i64>().ok();
    let names = std::fs::read_dir(HUGE_PAGES).into_iter().flatten().flatten();
    let mut sizes: Vec<i64> =
        names.filter_map(|e| size(e.file_name().to_string_lossy().into_owned())).map(|kib| kib << 10).collect();
    sizes.sort_unstable();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_tree_is_seen_beside_an_empty_unified_one() {
        let dir = tempfile::tempdir().expect("tempdir");
        assert!(Tree::detect(dir.path()).expect_err("nothing").starts_with("no cgroup tree is mounted at "));
        std::fs::write(dir.path().join("cgroup.controllers"), "\n").expect("write");
        let why = Tree::detect(dir.path()).expect_err("no controllers in it");
        assert!(why.contains("lacks the controllers cpu, memory, pids"), "{why}");
        std::fs::write(dir.path().join("cgroup.controllers"), "cpu memory io\n").expect("write");
        assert!(Tree::detect(dir.path()).expect_err("no pids").contains("lacks the controllers pids ("));
        std::fs::create_dir(dir.path().join("memory")).expect("mkdir");
        std::fs::write(dir.path().join("memory/tasks"), "").expect("write");
        assert_eq!(Tree::detect(dir.path()), Ok(Tree::Split(dir.path().to_owned())));
    }
}
