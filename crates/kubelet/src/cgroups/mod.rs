//! Cgroups of pods on v1 and v2, created directly or by systemd. The hierarchy is `ROOT/kubepods[/burstable|/besteffort]/podUID`, where
//! ROOT belongs to this node. If the hierarchy is not writable, the kubelet logs this once and runs without pods' cgroups (upstream:
//! `pkg/kubelet/cm`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

pub mod bounds;
mod checked;
pub mod io;
pub mod location;
pub mod memory;
pub mod name;
pub mod node;
pub mod placed;
pub mod pressure;
pub mod reading;
pub mod resources;
pub mod swap;
pub mod tree;
pub mod usage;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kelson_cri::leftovers::end_in_cgroups;
use kelson_metrics::{HistogramVec, IntGauge, Registry};
use kelson_tasks::FILES;
use tokio::time::Instant;

use crate::config::cgroups::{CgroupConfig, CgroupDriver, MemoryConfig};
use crate::metrics::USUAL_BOUNDS;
use crate::pod;
use crate::systemd::bus::Bus;
use crate::systemd::units::Slices;
use bounds::{Bounds, ClassMemory};
use checked::CheckedClasses;
use name::CgroupName;
use pressure::ResourcePressures;
use resources::quota;
use tree::Tree;
use usage::CgroupUsage;

/// Mount point of the cgroup file system.
const MOUNT: &str = "/sys/fs/cgroup";
/// QoS classes with a cgroup; Guaranteed pods are directly below `kubepods`.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];

/// Manager of the pods' cgroups. Without cgroups ([`Cgroups::none`]) its methods do nothing. A pod's cgroup is created by
/// [`Cgroups::ensure`] before its sandbox, its path is the runtime's `cgroup_parent`, and [`Cgroups::remove`] removes it after the pod's
/// containers ended. Clones share the state.
#[derive(Clone, Debug)]
pub struct Cgroups {
    inner: Option<Arc<Inner>>,
    /// Histogram of the duration of operations.
    seconds: Option<HistogramVec>,
    /// Gauges of `memory.min` and `memory.low` in bytes.
    keeps: Option<[IntGauge; 2]>,
}

#[derive(Debug)]
struct Inner {
    tree: Tree,
    driver: CgroupDriver,
    /// Cgroup of all pods, `ROOT/kubepods`.
    pods: CgroupName,
    pids_max: Option<u64>,
    page_sizes: Vec<i64>,
    memory: MemoryConfig,
    /// systemd's client, if systemd creates the cgroups.
    slices: Option<Slices>,
    /// Whether the cgroups above `pods` are used for pods only.
    own_root: bool,
    checked: CheckedClasses,
}

impl Cgroups {
    /// Returns a manager that creates no cgroups.
    pub fn none() -> Self {
        Self { inner: None, seconds: None, keeps: None }
    }

    /// Opens the machine's cgroup hierarchy. On failure, logs a warning and returns a manager that creates no cgroups.
    pub async fn open(config: Option<&CgroupConfig>, pids_max: Option<u64>, memory: MemoryConfig) -> Self {
        let Some(config) = config else { return Self::none() };
        let slices = (config.driver == CgroupDriver::Systemd).then(|| Slices::new(&Bus::system()));
        Self::at(Path::new(MOUNT), config, (pids_max, memory), slices).await
    }

    async fn at(
        mount: &Path,
        config: &CgroupConfig,
        (pids_max, memory): (Option<u64>, MemoryConfig),
        slices: Option<Slices>,
    ) -> Self {
        let tree = match Tree::detect(mount) {
            Ok(tree) => tree,
            Err(why) => {
                tracing::warn!("{why}; running without pod cgroups, so limits of pods are not enforced");
                return Self::none();
            }
        };
        let driver = config.driver;
        let inner = Inner {
            tree,
            driver,
            pods: CgroupName::parse(&config.root, driver).join("kubepods"),
            pids_max,
            page_sizes: tree::page_sizes(),
            memory,
            slices,
            own_root: config.own_root,
            checked: CheckedClasses::default(),
        };
        let inner = Arc::new(inner);
        let bounds = Bounds::of_best_effort(&inner.page_sizes);
        for class in [None, Some(CLASSES[0]), Some(CLASSES[1])] {
            let name = class.map_or_else(|| inner.pods.clone(), |c| inner.pods.join(c));
            let bounds = if class.is_some() { bounds.clone() } else { Bounds::default() };
            if let Err(e) = inner.ensure(name, bounds).await {
                tracing::warn!(error = e, "cannot create cgroups; running without pod cgroups");
                return Self::none();
            }
        }
        Self { inner: Some(inner), seconds: None, keeps: None }
    }

    /// Registers metrics: the cgroup version and the duration of operations.
    #[must_use]
    pub fn counted(self, r: &Registry) -> Self {
        let Some(inner) = &self.inner else { return self };
        let version = if inner.tree.is_unified() { 2 } else { 1 };
        r.gauge("kubelet_cgroup_version", "Version of the machine's cgroup hierarchy (1 or 2).").set(version);
        let seconds = r.histograms(
            "kubelet_cgroup_manager_duration_seconds",
            "Duration of cgroup manager operations in seconds, by operation (create, update, destroy).",
            &["operation_type"],
            &USUAL_BOUNDS,
        );
        let keeps = inner.memory.qos.filter(|_| inner.tree.is_unified()).map(|_| {
            let guaranteed = "Memory in bytes that is always protected for Guaranteed pods (memory.min).";
            let burstable = "Memory in bytes that is protected for Burstable pods if possible (memory.low).";
            [
                r.gauge("kubelet_memory_qos_node_memory_min_bytes", guaranteed),
                r.gauge("kubelet_memory_qos_node_memory_low_bytes", burstable),
            ]
        });
        Self { seconds: Some(seconds), keeps, ..self }
    }

    fn kept(&self, asked: ClassMemory) {
        if let Some([min, low]) = &self.keeps {
            min.set(asked.guaranteed);
            low.set(asked.burstable);
        }
    }

    fn took(&self, what: &str, since: Instant) {
        if let Some(seconds) = &self.seconds {
            seconds.with_label_values(&[what]).observe(since.elapsed().as_secs_f64());
        }
    }

    /// The driver that creates the cgroups; `None` without cgroups.
    pub fn driver(&self) -> Option<CgroupDriver> {
        self.inner.as_ref().map(|inner| inner.driver)
    }

    /// Value of `cgroup_parent` for the pod's sandbox; empty without cgroups.
    pub fn parent(&self, pod: &Pod) -> String {
        self.inner.as_ref().map(|i| format!("/{}", i.path(&i.name(pod)))).unwrap_or_default()
    }

    /// Creates the pod's cgroup and sets its limits; with `unbound_cpu` without a CPU quota.
    ///
    /// # Errors
    /// The kernel or systemd could not create it.
    pub async fn ensure(&self, pod: &Pod, unbound_cpu: bool) -> Result<(), String> {
        let Some(inner) = &self.inner else { return Ok(()) };
        let mut bounds = Bounds::of_pod(pod, inner.pids_max, &inner.page_sizes);
        if inner.memory.qos.is_some_and(|qos| qos.is_tiered) {
            bounds = bounds.keeping_memory(pod);
        }
        if unbound_cpu {
            bounds.quota = bounds.quota.map(|_| 0);
        }
        let (name, began) = (inner.name(pod), Instant::now());
        let is_there = inner.tree.directories(&inner.path(&name)).first().is_some_and(|dir| dir.exists());
        let ensured = inner.ensure(name, bounds).await;
        self.took(if is_there { "update" } else { "create" }, began);
        ensured.map_err(|e| {
            format!("failed to ensure that the pod: {} cgroups exist and are correctly applied: {e}", pod::uid(pod))
        })
    }

    /// Raises the pod's limits that are below the granted ones. [`Cgroups::ensure`] lowers the others after the containers' limits were
    /// lowered.
    ///
    /// # Errors
    /// The process is ending.
    pub async fn raise(&self, pod: &Pod) -> Result<(), String> {
        let Some(inner) = self.inner.clone() else { return Ok(()) };
        let pod = pod.clone();
        FILES.run(move || inner.raise(&pod)).await.map_err(|e| e.to_string())
    }

    /// Removes the cgroup of a pod whose containers have ended, in every QoS class. Kills remaining processes first. Cgroups that are still
    /// busy are left for the next call.
    pub async fn remove(&self, uid: &str) {
        let Some(inner) = &self.inner else { return };
        let (trees, began) = (inner.trees(uid), Instant::now());
        for error in end_in_cgroups(trees.clone()).await {
            tracing::warn!(uid, error, "cannot kill a process of an ended pod");
        }
        // Fails only if the process ends, or after a panic that was already reported.
        let _ = FILES.run(move || trees.iter().for_each(|dir| tree::remove(dir))).await;
        if let Some(slices) = &inner.slices {
            for name in inner.names(uid) {
                if let Err(error) = slices.end(&name.slice().0).await {
                    tracing::debug!(uid, %error, "cannot stop the systemd slice of an ended pod");
                }
            }
        }
        self.took("destroy", began);
    }

    /// Pressure of a pod's cgroup (cgroup v2 only). Reads kernel files.
    pub fn pressure(&self, uid: &str) -> ResourcePressures {
        self.unified_directory(uid).map(|dir| ResourcePressures::read(&dir)).unwrap_or_default()
    }

    /// Directory of a container's cgroup on cgroup v2, named by the container's ID or as a systemd scope.
    pub fn container_directory(&self, uid: &str, id: &str) -> Option<PathBuf> {
        let names = std::fs::read_dir(self.unified_directory(uid)?).ok()?;
        let is_its = |name: &str| name == id || name.strip_suffix(".scope").is_some_and(|n| n.ends_with(id));
        names.flatten().find(|e| e.file_name().to_str().is_some_and(is_its)).map(|e| e.path())
    }

    fn unified_directory(&self, uid: &str) -> Option<PathBuf> {
        let inner = self.inner.as_ref().filter(|i| i.tree.is_unified())?;
        inner.trees(uid).into_iter().find(|dir| dir.exists())
    }

    /// Pressure of the whole machine.
    pub fn machine_pressure(&self) -> ResourcePressures {
        let of = |inner: &Arc<Inner>| inner.tree.is_unified().then(|| ResourcePressures::read(Path::new(MOUNT)));
        self.inner.as_ref().and_then(of).unwrap_or_default()
    }

    /// Pressure of all pods together.
    pub fn pods_pressure(&self) -> ResourcePressures {
        let unified = self.inner.as_ref().filter(|inner| inner.tree.is_unified());
        let dirs = unified.map(|inner| inner.tree.directories(&inner.path(&inner.pods))).unwrap_or_default();
        dirs.first().map(|dir| ResourcePressures::read(dir)).unwrap_or_default()
    }

    /// Usage of a pod's cgroup, or of all pods for `None`; empty without cgroups. Reads kernel files.
    pub fn usage(&self, uid: Option<&str>) -> CgroupUsage {
        let Some(inner) = &self.inner else { return CgroupUsage::default() };
        let names = uid.map_or_else(|| vec![inner.pods.clone()], |uid| inner.names(uid).into());
        let used = |name: &CgroupName| CgroupUsage::read(&inner.tree, &inner.path(name));
        names.iter().map(used).find(|u| u.memory.is_some() || u.cpu_nanos.is_some()).unwrap_or_default()
    }

    /// Usage of a container's cgroup, named by the container's ID or as a systemd scope. Reads kernel files.
    pub fn container_usage(&self, uid: &str, id: &str) -> CgroupUsage {
        let Some(inner) = &self.inner else { return CgroupUsage::default() };
        let named = self.container_directory(uid, id);
        let name = named.as_deref().and_then(Path::file_name).map_or(id.into(), |n| n.to_string_lossy());
        let used = |pod: &CgroupName| CgroupUsage::read(&inner.tree, &format!("{}/{name}", inner.path(pod)));
        inner.names(uid).iter().map(used).find(|u| u.memory.is_some() || u.cpu_nanos.is_some()).unwrap_or_default()
    }

    /// Number of processes and threads of a pod. Reads a kernel file.
    pub fn processes(&self, uid: &str) -> Option<u64> {
        let inner = self.inner.as_ref()?;
        let read = |name: CgroupName| {
            let file = inner.tree.file(&inner.path(&name), "pids", "pids.current");
            std::fs::read_to_string(file).ok()?.trim().parse().ok()
        };
        inner.names(uid).into_iter().find_map(read)
    }
}

impl Inner {
    /// Creates a cgroup and sets its limits.
    async fn ensure(self: &Arc<Self>, name: CgroupName, bounds: Bounds) -> Result<(), String> {
        let slice = name.slice();
        if let Some(slices) = &self.slices {
            slices.make(&slice.0, &slice.1).await.map_err(|e| e.to_string())?;
            let properties = bounds.properties(self.tree.is_unified());
            slices.set(&slice.0, &properties).await.map_err(|e| e.to_string())?;
        }
        let me = Arc::clone(self);
        let work = move || {
            let path = me.path(&name);
            me.tree.make(&path)?;
            // A limit that the kernel does not support must not prevent pods from running.
            let _ = me.tree.hold(&path, &bounds);
            Ok::<_, std::io::Error>(())
        };
        FILES.run(work).await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
    }

    fn raise(&self, pod: &Pod) {
        let path = self.path(&self.name(pod));
        let bound = |v1: (&str, &str), v2: &str| self.tree.bound(&path, v1, v2);
        let memory = pod::pod_limit(pod, "memory").map(|l| l.value());
        let cpu = pod::pod_limit(pod, "cpu").map(|l| quota(l.milli_value()));
        let rises = |now: Option<i64>, wanted: i64| now.is_some_and(|now| now < wanted);
        let raised = Bounds {
            memory: memory.filter(|w| rises(bound(("memory", "memory.limit_in_bytes"), "memory.max"), *w)),
            quota: cpu.filter(|w| rises(bound(("cpu", "cpu.cfs_quota_us"), "cpu.max"), *w)),
            ..Bounds::default()
        };
        // A failure is already logged; its effect shows when the containers' limits are set.
        let _ = self.tree.hold(&path, &raised);
    }

    fn path(&self, name: &CgroupName) -> String {
        name.path(self.driver)
    }

    fn name(&self, pod: &Pod) -> CgroupName {
        let class = match pod::qos_class(pod) {
            "Burstable" => self.pods.join(CLASSES[0]),
            "BestEffort" => self.pods.join(CLASSES[1]),
            _ => self.pods.clone(),
        };
        class.join(format!("pod{}", pod::uid(pod)))
    }

    /// Names of a pod's cgroup in each QoS class.
    fn names(&self, uid: &str) -> [CgroupName; 3] {
        let of = |class: CgroupName| class.join(format!("pod{uid}"));
        [of(self.pods.clone()), of(self.pods.join(CLASSES[0])), of(self.pods.join(CLASSES[1]))]
    }

    /// Directories of a pod's cgroup in each QoS class.
    fn trees(&self, uid: &str) -> Vec<PathBuf> {
        self.names(uid).iter().flat_map(|name| self.tree.directories(&self.path(name))).collect()
    }
}

#[cfg(test)]
mod tests;
