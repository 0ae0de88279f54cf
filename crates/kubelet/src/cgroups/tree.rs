//! The kernel's cgroup hierarchy: one mount (v2) or one mount per controller (v1).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::io;
use std::path::{Path, PathBuf};

use super::bounds::{Bounds, CgroupFile};

/// The kernel's cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    /// One hierarchy (v2), with its mount point.
    Unified(PathBuf),
    /// One hierarchy per controller (v1), with the directory of the mount points.
    Split(PathBuf),
}

/// v1 controllers in which pods have a cgroup.
const CONTROLLERS: &[&str] =
    &["cpu", "cpuacct", "memory", "pids", "cpuset", "blkio", "devices", "freezer", "hugetlb", "net_cls", "perf_event"];
/// Controllers that a v2 hierarchy must have.
const NEEDED: &[&str] = &["cpu", "memory", "pids"];
/// Directory in which the kernel lists huge page sizes.
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";

impl Tree {
    /// Detects the hierarchy: v1 if memory is a v1 controller, even if an empty v2 hierarchy is mounted too.
    ///
    /// # Errors
    /// What is missing.
    pub fn detect(mount: &Path) -> Result<Self, String> {
        if mount.join("memory").join("memory.limit_in_bytes").exists() || mount.join("memory/tasks").exists() {
            return Ok(Self::Split(mount.to_owned()));
        }
        let at = mount.display();
        let Ok(offered) = std::fs::read_to_string(mount.join("cgroup.controllers")) else {
            return Err(format!("no cgroup hierarchy is mounted at {at}"));
        };
        let missing: Vec<&str> =
            NEEDED.iter().copied().filter(|n| offered.split_whitespace().all(|c| c != *n)).collect();
        if missing.is_empty() {
            return Ok(Self::Unified(mount.to_owned()));
        }
        let missing = missing.join(", ");
        Err(format!(
            "the cgroup v2 hierarchy at {at} lacks the controllers {missing} (they may be bound to v1 hierarchies mounted elsewhere)"
        ))
    }

    /// Returns whether it is a v2 hierarchy.
    pub fn is_unified(&self) -> bool {
        matches!(self, Self::Unified(_))
    }

    /// Path of a file of the cgroup at `path`.
    pub fn file(&self, path: &str, controller: &str, name: &str) -> PathBuf {
        match self {
            Self::Split(mount) => mount.join(controller).join(path).join(name),
            Self::Unified(mount) => mount.join(path).join(name),
        }
    }

    /// Directories of the cgroup at `path`, one per controller on v1.
    pub fn directories(&self, path: &str) -> Vec<PathBuf> {
        match self {
            Self::Unified(mount) => vec![mount.join(path)],
            Self::Split(mount) => {
                let mut seen = std::collections::HashSet::new();
                let mounted = CONTROLLERS.iter().map(|c| mount.join(c)).filter(|d| d.exists());
                // `cpu` and `cpuacct` are usually one mount with two names.
                mounted.filter(|d| seen.insert(d.canonicalize().unwrap_or_default())).map(|d| d.join(path)).collect()
            }
        }
    }

    /// Creates the cgroup at `path` and its ancestors.
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
                    // Children can use only controllers that their parent enables.
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

    /// Sets limits of the cgroup at `path`.
    ///
    /// # Errors
    /// The first failure; the other limits are set anyway.
    pub fn hold(&self, path: &str, bounds: &Bounds) -> io::Result<()> {
        let mut failed = None;
        for CgroupFile { controller, name, value } in bounds.files(self.is_unified()) {
            let file = self.file(path, controller, &name);
            if let Err(e) = std::fs::write(&file, &value) {
                // Some kernels have no huge page controller.
                if controller == "hugetlb" && e.kind() == io::ErrorKind::NotFound {
                    continue;
                }
                tracing::debug!(file = %file.display(), value, error = %e, "cannot set a cgroup limit");
                failed.get_or_insert(io::Error::new(e.kind(), format!("write {value:?} to {}: {e}", file.display())));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Reads a limit; `None` means no limit.
    pub fn bound(&self, path: &str, (controller, v1): (&str, &str), v2: &str) -> Option<i64> {
        let file = self.file(path, controller, if self.is_unified() { v2 } else { v1 });
        let text = std::fs::read_to_string(file).ok()?;
        text.split_whitespace().next()?.parse().ok().filter(|n: &i64| *n >= 0)
    }
}

/// Copies CPUs and memory nodes from the parent, because a v1 cpuset without them accepts no process.
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

/// Removes a cgroup and its descendants. Busy ones are left.
pub fn remove(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for e in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        remove(&e.path());
    }
    if let Err(e) = std::fs::remove_dir(dir)
        && e.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(dir = %dir.display(), error = %e, "cannot remove a cgroup");
    }
}

/// Returns the sizes of the machine's huge pages in bytes.
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
    fn cgroup_v1_is_detected_beside_an_empty_v2_hierarchy() {
        let dir = tempfile::tempdir().expect("tempdir");
        assert!(Tree::detect(dir.path()).expect_err("nothing").starts_with("no cgroup hierarchy is mounted at "));
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
