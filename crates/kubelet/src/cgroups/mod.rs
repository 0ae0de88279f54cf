//! Cgroups of pods, on v1 and v2. The tree is `ROOT/kubepods[/burstable|/besteffort]/podUID`; ROOT is this node's own.
//! Where the kernel's tree cannot be written the kubelet says so once and runs without (upstream: `pkg/kubelet/cm`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

pub mod resources;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kelson_cri::leftovers::end_in_cgroups;
use kelson_tasks::FILES;

use crate::pod;
use resources::{PERIOD, SHARES_MIN, quota, shares, weight};

/// How the kernel's tree is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Tree {
    /// One tree; the mount point.
    Unified(PathBuf),
    /// One mount per controller; the directory of the mounts.
    Split(PathBuf),
}

/// The pods' cgroups; cheap to clone.
#[derive(Clone, Debug)]
pub struct Cgroups {
    inner: Option<Arc<Inner>>,
}

#[derive(Debug)]
struct Inner {
    tree: Tree,
    root: String,
    pids_max: Option<u64>,
}

/// Controllers of the split tree that pods get directories in.
const CONTROLLERS: &[&str] =
    &["cpu", "cpuacct", "memory", "pids", "cpuset", "blkio", "devices", "freezer", "hugetlb", "net_cls", "perf_event"];

impl Cgroups {
    /// No cgroups of pods' own.
    pub fn none() -> Self {
        Self { inner: None }
    }

    /// Cgroups below `root` (e.g. `kelson-1a2b`) of the machine's tree; logs and does without where that fails.
    pub fn below(root: &str, pids_max: Option<u64>) -> Self {
        if root.is_empty() {
            return Self::none();
        }
        Self::at(Path::new("/sys/fs/cgroup"), root, pids_max)
    }

    fn at(mount: &Path, root: &str, pids_max: Option<u64>) -> Self {
        let tree = match detect(mount) {
            Ok(tree) => tree,
            Err(why) => {
                tracing::warn!("{why}: pods run without cgroups of their own, and their limits are not held");
                return Self::none();
            }
        };
        let inner = Inner { tree, root: root.trim_matches('/').to_owned(), pids_max };
        for level in ["", "/burstable", "/besteffort"] {
            if let Err(e) = inner.make(&format!("{}/kubepods{level}", inner.root)) {
                tracing::warn!(error = %e, "cannot make cgroups: pods run without cgroups of their own");
                return Self::none();
            }
        }
        inner.write_cpu_shares(&format!("{}/kubepods/besteffort", inner.root), SHARES_MIN);
        Self { inner: Some(Arc::new(inner)) }
    }

    /// `cgroup_parent` of the pod's containers; empty without cgroups.
    pub fn parent(&self, pod: &Pod) -> String {
        self.inner.as_ref().map(|i| format!("/{}", i.path(pod))).unwrap_or_default()
    }

    /// Makes the pod's cgroup and sets its limits.
    ///
    /// # Errors
    /// When the kernel does not make it.
    pub async fn ensure(&self, pod: &Pod) -> Result<(), String> {
        let Some(inner) = self.inner.clone() else { return Ok(()) };
        let pod = pod.clone();
        FILES.run(move || inner.ensure(&pod)).await.map_err(|e| e.to_string())?
    }

    /// Raises the pod's limits to what it may use from now on, where they are lower; [`Cgroups::ensure`] lowers the others once
    /// its containers use less.
    ///
    /// # Errors
    /// When the process ends.
    pub async fn raise(&self, pod: &Pod) -> Result<(), String> {
        let Some(inner) = self.inner.clone() else { return Ok(()) };
        let pod = pod.clone();
        FILES.run(move || inner.raise(&pod)).await.map_err(|e| e.to_string())
    }

    /// Removes the cgroup of a pod whose containers have ended, and all an earlier class left. A process that the runtime
    /// forgot in it is ended first; what is still busy then is left for the next time.
    pub async fn remove(&self, uid: &str) {
        let Some(inner) = &self.inner else { return };
        let trees = inner.trees(uid);
        for error in end_in_cgroups(trees.clone()).await {
            tracing::warn!(uid, error, "a process of a pod that has ended");
        }
        // Fails only when the process ends, or by a panic that has been reported.
        let _ = FILES.run(move || trees.iter().for_each(|dir| remove_tree(dir))).await;
    }

    /// How many processes and threads a pod has. Reads a file of the kernel's.
    pub fn processes(&self, uid: &str) -> Option<u64> {
        self.inner.as_ref()?.processes(uid)
    }
}

fn remove_tree(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for e in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        remove_tree(&e.path());
    }
    if let Err(e) = std::fs::remove_dir(dir)
        && e.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(dir = %dir.display(), error = %e, "cgroup not removed");
    }
}

/// Controllers without which a unified tree is of no use.
const NEEDED: &[&str] = &["cpu", "memory", "pids"];

/// The tree in use: split where memory is a v1 controller, even beside a mounted but empty unified tree. The error says
/// what is missing.
fn detect(mount: &Path) -> Result<Tree, String> {
    if mount.join("memory").join("memory.limit_in_bytes").exists() || mount.join("memory/tasks").exists() {
        return Ok(Tree::Split(mount.to_owned()));
    }
    let at = mount.display();
    let Ok(offered) = std::fs::read_to_string(mount.join("cgroup.controllers")) else {
        return Err(format!("no cgroup tree is mounted at {at}"));
    };
    let missing: Vec<&str> = NEEDED.iter().copied().filter(|n| offered.split_whitespace().all(|c| c != *n)).collect();
    if missing.is_empty() {
        return Ok(Tree::Unified(mount.to_owned()));
    }
    let missing = missing.join(", ");
    Err(format!(
        "the cgroup v2 tree at {at} lacks the controllers {missing} (they may be bound to v1 hierarchies mounted elsewhere)"
    ))
}

impl Inner {
    fn ensure(&self, pod: &Pod) -> Result<(), String> {
        let path = self.path(pod);
        self.make(&path).map_err(|e| {
            format!("failed to ensure that the pod: {} cgroups exist and are correctly applied: {e}", pod::uid(pod))
        })?;
        self.write_cpu_shares(&path, shares(pod::pod_request(pod, "cpu").milli_value()));
        if let Some(limit) = pod::pod_limit(pod, "cpu") {
            self.write_cpu_quota(&path, quota(limit.milli_value()));
        }
        if let Some(limit) = pod::pod_limit(pod, "memory") {
            self.write(&path, ("memory", "memory.limit_in_bytes"), "memory.max", &limit.value().to_string());
        }
        if let Some(max) = self.pids_max {
            self.write(&path, ("pids", "pids.max"), "pids.max", &max.to_string());
        }
        Ok(())
    }

    fn raise(&self, pod: &Pod) {
        let path = self.path(pod);
        if let Some(limit) = pod::pod_limit(pod, "memory")
            && self
                .bound(&path, ("memory", "memory.limit_in_bytes"), "memory.max")
                .is_some_and(|now| now < limit.value())
        {
            self.write(&path, ("memory", "memory.limit_in_bytes"), "memory.max", &limit.value().to_string());
        }
        let wanted = pod::pod_limit(pod, "cpu").map(|l| quota(l.milli_value()));
        if let Some(wanted) = wanted
            && self.bound(&path, ("cpu", "cpu.cfs_quota_us"), "cpu.max").is_some_and(|now| now < wanted)
        {
            self.write_cpu_quota(&path, wanted);
        }
    }

    /// A limit as the kernel has it; `None` where there is none.
    fn bound(&self, path: &str, (controller, v1): (&str, &str), v2: &str) -> Option<i64> {
        let file = match &self.tree {
            Tree::Split(mount) => mount.join(controller).join(path).join(v1),
            Tree::Unified(mount) => mount.join(path).join(v2),
        };
        let text = std::fs::read_to_string(file).ok()?;
        text.split_whitespace().next()?.parse().ok().filter(|n: &i64| *n >= 0)
    }

    fn processes(&self, uid: &str) -> Option<u64> {
        let read = |class: &str| {
            let path = format!("{}/kubepods{class}/pod{uid}/pids.current", self.root);
            let file = match &self.tree {
                Tree::Unified(mount) => mount.join(path),
                Tree::Split(mount) => mount.join("pids").join(path),
            };
            std::fs::read_to_string(file).ok()?.trim().parse().ok()
        };
        ["", "/burstable", "/besteffort"].into_iter().find_map(read)
    }

    /// Where a pod's cgroups are, whatever its class.
    fn trees(&self, uid: &str) -> Vec<PathBuf> {
        let classes = ["", "/burstable", "/besteffort"].into_iter();
        classes.flat_map(|class| self.directories(&format!("{}/kubepods{class}/pod{uid}", self.root))).collect()
    }

    fn path(&self, pod: &Pod) -> String {
        let class = match pod::qos_class(pod) {
            "Burstable" => "/burstable",
            "BestEffort" => "/besteffort",
            _ => "",
        };
        format!("{}/kubepods{class}/pod{}", self.root, pod::uid(pod))
    }

    fn directories(&self, path: &str) -> Vec<PathBuf> {
        match &self.tree {
            Tree::Unified(mount) => vec![mount.join(path)],
            Tree::Split(mount) => {
                let mut seen = std::collections::HashSet::new();
                let mounted = CONTROLLERS.iter().map(|c| mount.join(c)).filter(|d| d.exists());
                // `cpu` and `cpuacct` are usually one mount under two names.
                mounted.filter(|d| seen.insert(d.canonicalize().unwrap_or_default())).map(|d| d.join(path)).collect()
            }
        }
    }

    fn make(&self, path: &str) -> io::Result<()> {
        match &self.tree {
            Tree::Split(mount) => {
                for dir in self.directories(path) {
                    std::fs::create_dir_all(&dir)?;
                }
                copy_cpuset(&mount.join("cpuset"), path);
                Ok(())
            }
            Tree::Unified(mount) => {
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

    fn write(&self, path: &str, (controller, v1): (&str, &str), v2: &str, value: &str) {
        let file = match &self.tree {
            Tree::Split(mount) => mount.join(controller).join(path).join(v1),
            Tree::Unified(mount) => mount.join(path).join(v2),
        };
        if let Err(e) = std::fs::write(&file, value) {
            tracing::debug!(file = %file.display(), value, error = %e, "cgroup limit not set");
        }
    }

    fn write_cpu_shares(&self, path: &str, shares: i64) {
        let value = match self.tree {
            Tree::Split(_) => shares,
            Tree::Unified(_) => weight(shares),
        };
        self.write(path, ("cpu", "cpu.shares"), "cpu.weight", &value.to_string());
    }

    fn write_cpu_quota(&self, path: &str, quota: i64) {
        match self.tree {
            Tree::Split(_) => {
                self.write(path, ("cpu", "cpu.cfs_period_us"), "", &PERIOD.to_string());
                let quota = if quota == 0 { -1 } else { quota };
                self.write(path, ("cpu", "cpu.cfs_quota_us"), "", &quota.to_string());
            }
            Tree::Unified(_) => {
                let quota = if quota == 0 { "max".to_owned() } else { quota.to_string() };
                self.write(path, ("", ""), "cpu.max", &format!("{quota} {PERIOD}"));
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_split_tree_is_seen_beside_an_empty_unified_one() {
        let dir = tempfile::tempdir().expect("tempdir");
        assert!(detect(dir.path()).expect_err("nothing").starts_with("no cgroup tree is mounted at "));
        std::fs::write(dir.path().join("cgroup.controllers"), "\n").expect("write");
        let why = detect(dir.path()).expect_err("no controllers in it");
        assert!(why.contains("lacks the controllers cpu, memory, pids"), "{why}");
        std::fs::write(dir.path().join("cgroup.controllers"), "cpu memory io\n").expect("write");
        assert!(detect(dir.path()).expect_err("no pids").contains("lacks the controllers pids ("));
        std::fs::create_dir(dir.path().join("memory")).expect("mkdir");
        std::fs::write(dir.path().join("memory/tasks"), "").expect("write");
        assert_eq!(detect(dir.path()), Ok(Tree::Split(dir.path().to_owned())));
    }

    fn limited() -> Pod {
        serde_json::from_value(json!({"metadata":{"uid":"u"},"spec":{"containers":[{"name":"a","resources":
            {"requests":{"cpu":"500m"},"limits":{"cpu":"1500m","memory":"64Mi"}}}]}}))
        .expect("pod")
    }

    #[test]
    fn a_pod_in_the_unified_tree() {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io memory hugetlb pids\n").expect("write");
        let cgroups = Cgroups::at(dir.path(), "k", Some(100));
        let pod = limited();
        assert_eq!(cgroups.parent(&pod), "/k/kubepods/burstable/podu");
        cgroups.inner.as_ref().expect("cgroups").ensure(&pod).expect("made");
        let own = dir.path().join("k/kubepods/burstable/podu");
        let read = |file: &str| std::fs::read_to_string(own.join(file)).expect(file);
        assert_eq!(read("cpu.max"), "150000 100000");
        assert_eq!(read("cpu.weight"), weight(512).to_string());
        assert_eq!((read("memory.max").as_str(), read("pids.max").as_str()), ("67108864", "100"));
        let handed =
            std::fs::read_to_string(dir.path().join("k/kubepods/cgroup.subtree_control")).expect("handed down");
        assert!(handed.starts_with('+'), "{handed}");
        std::fs::write(own.join("pids.current"), "7\n").expect("write");
        assert_eq!((cgroups.processes("u"), cgroups.processes("other")), (Some(7), None));
    }

    #[test]
    fn a_pod_in_split_trees() {
        let dir = tempfile::tempdir().expect("tempdir");
        for controller in ["cpu", "memory", "pids"] {
            std::fs::create_dir(dir.path().join(controller)).expect("mkdir");
        }
        std::fs::write(dir.path().join("memory/tasks"), "").expect("write");
        let cgroups = Cgroups::at(dir.path(), "k", Some(100));
        cgroups.inner.as_ref().expect("cgroups").ensure(&limited()).expect("made");
        let read = |file: &str| std::fs::read_to_string(dir.path().join(file)).expect(file);
        assert_eq!(read("cpu/k/kubepods/burstable/podu/cpu.cfs_quota_us"), "150000");
        assert_eq!(read("cpu/k/kubepods/burstable/podu/cpu.shares"), "512");
        assert_eq!(read("memory/k/kubepods/burstable/podu/memory.limit_in_bytes"), "67108864");
        assert_eq!(read("pids/k/kubepods/burstable/podu/pids.max"), "100");
        // Raised at once, lowered only when its containers use less.
        let own = "memory/k/kubepods/burstable/podu/memory.limit_in_bytes";
        for (before, after) in [("1024", "67108864"), ("100000000", "100000000"), ("-1", "-1")] {
            std::fs::write(dir.path().join(own), before).expect("write");
            cgroups.inner.as_ref().expect("cgroups").raise(&limited());
            assert_eq!(read(own), after);
        }
    }
}
