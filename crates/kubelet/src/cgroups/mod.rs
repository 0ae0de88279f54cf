//! Cgroups of pods, on v1 and v2, made here or by systemd. The tree is `ROOT/kubepods[/burstable|/besteffort]/podUID`; ROOT
//! is this node's own. Where the kernel's tree cannot be written the kubelet says so once and runs without (upstream:
//! `pkg/kubelet/cm`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

pub mod bounds;
pub mod memory;
pub mod name;
pub mod node;
pub mod placed;
pub mod pressure;
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
use name::CgroupName;
use pressure::ResourcePressures;
use resources::quota;
use tree::Tree;
use usage::CgroupUsage;

/// Where the kernel's tree is mounted.
const MOUNT: &str = "/sys/fs/cgroup";
/// The classes that have a cgroup of their own; guaranteed pods lie beside these.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];

/// The pods' cgroups; cheap to clone.
#[derive(Clone, Debug)]
pub struct Cgroups {
    inner: Option<Arc<Inner>>,
    /// How long it takes to make, change and remove one.
    seconds: Option<HistogramVec>,
    /// Bytes that are kept at all events, and as long as there are others.
    keeps: Option<[IntGauge; 2]>,
}

#[derive(Debug)]
struct Inner {
    tree: Tree,
    driver: CgroupDriver,
    /// The cgroup of all pods, `ROOT/kubepods`.
    pods: CgroupName,
    pids_max: Option<u64>,
    page_sizes: Vec<i64>,
    memory: MemoryConfig,
    /// Makes the cgroups, where systemd does.
    slices: Option<Slices>,
    /// Whether what is above `pods` is there for pods alone.
    own_root: bool,
}

impl Cgroups {
    /// No cgroups of pods' own.
    pub fn none() -> Self {
        Self { inner: None, seconds: None, keeps: None }
    }

    /// Cgroups in the machine's tree; logs and does without where that fails.
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
                tracing::warn!("{why}: pods run without cgroups of their own, and their limits are not held");
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
        };
        let inner = Arc::new(inner);
        let bounds = Bounds::of_best_effort(&inner.page_sizes);
        for class in [None, Some(CLASSES[0]), Some(CLASSES[1])] {
            let name = class.map_or_else(|| inner.pods.clone(), |c| inner.pods.join(c));
            let bounds = if class.is_some() { bounds.clone() } else { Bounds::default() };
            if let Err(e) = inner.ensure(name, bounds).await {
                tracing::warn!(error = e, "cannot make cgroups: pods run without cgroups of their own");
                return Self::none();
            }
        }
        Self { inner: Some(inner), seconds: None, keeps: None }
    }

    /// The same, which shows by `r` which version the machine's tree has and how long work on it takes.
    #[must_use]
    pub fn counted(self, r: &Registry) -> Self {
        let Some(inner) = &self.inner else { return self };
        let version = if inner.tree.is_unified() { 2 } else { 1 };
        r.gauge("kubelet_cgroup_version", "Version of the kernel's tree of cgroups.").set(version);
        let seconds = r.histograms(
            "kubelet_cgroup_manager_duration_seconds",
            "Seconds that it took to create, update or destroy the cgroup of a pod.",
            &["operation_type"],
            &USUAL_BOUNDS,
        );
        let keeps = inner.memory.qos.filter(|_| inner.tree.is_unified()).map(|_| {
            let guaranteed = "Bytes of memory that are kept for guaranteed pods at all events (memory.min).";
            let burstable =
                "Bytes of memory that are kept for burstable pods as long as there are others (memory.low).";
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

    /// `cgroup_parent` of the pod's containers; empty without cgroups.
    pub fn parent(&self, pod: &Pod) -> String {
        self.inner.as_ref().map(|i| format!("/{}", i.path(&i.name(pod)))).unwrap_or_default()
    }

    /// Makes the pod's cgroup and sets its limits; with `unbound_cpu` none in the time of processors.
    ///
    /// # Errors
    /// When the kernel or systemd does not make it.
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
        let (trees, began) = (inner.trees(uid), Instant::now());
        for error in end_in_cgroups(trees.clone()).await {
            tracing::warn!(uid, error, "a process of a pod that has ended");
        }
        // Fails only when the process ends, or by a panic that has been reported.
        let _ = FILES.run(move || trees.iter().for_each(|dir| tree::remove(dir))).await;
        if let Some(slices) = &inner.slices {
            for name in inner.names(uid) {
                if let Err(error) = slices.end(&name.slice().0).await {
                    tracing::debug!(uid, %error, "slice not ended");
                }
            }
        }
        self.took("destroy", began);
    }

    /// What a pod as a whole has waited for, as far as the kernel tells (cgroup v2). Reads files of the kernel's.
    pub fn pressure(&self, uid: &str) -> ResourcePressures {
        self.unified_directory(uid).map(|dir| ResourcePressures::read(&dir)).unwrap_or_default()
    }

    /// The cgroup of a container, in one tree of all controllers: named by the container's ID alone, or as a scope of systemd's.
    pub fn container_directory(&self, uid: &str, id: &str) -> Option<PathBuf> {
        let names = std::fs::read_dir(self.unified_directory(uid)?).ok()?;
        let is_its = |name: &str| name == id || name.strip_suffix(".scope").is_some_and(|n| n.ends_with(id));
        names.flatten().find(|e| e.file_name().to_str().is_some_and(is_its)).map(|e| e.path())
    }

    fn unified_directory(&self, uid: &str) -> Option<PathBuf> {
        let inner = self.inner.as_ref().filter(|i| i.tree.is_unified())?;
        inner.trees(uid).into_iter().find(|dir| dir.exists())
    }

    /// The same of the whole machine.
    pub fn machine_pressure(&self) -> ResourcePressures {
        let of = |inner: &Arc<Inner>| inner.tree.is_unified().then(|| ResourcePressures::read(Path::new(MOUNT)));
        self.inner.as_ref().and_then(of).unwrap_or_default()
    }

    /// What a pod's cgroup uses, and what all pods use together; nothing without cgroups. Reads files of the kernel's.
    pub fn usage(&self, uid: Option<&str>) -> CgroupUsage {
        let Some(inner) = &self.inner else { return CgroupUsage::default() };
        let names = uid.map_or_else(|| vec![inner.pods.clone()], |uid| inner.names(uid).into());
        let used = |name: &CgroupName| CgroupUsage::read(&inner.tree, &inner.path(name));
        names.iter().map(used).find(|u| u.memory.is_some() || u.cpu_nanos.is_some()).unwrap_or_default()
    }

    /// What a container's cgroup uses: named by the container's ID alone, or as a scope of systemd's. Reads files of the kernel's.
    pub fn container_usage(&self, uid: &str, id: &str) -> CgroupUsage {
        let Some(inner) = &self.inner else { return CgroupUsage::default() };
        let named = self.container_directory(uid, id);
        let name = named.as_deref().and_then(Path::file_name).map_or(id.into(), |n| n.to_string_lossy());
        let used = |pod: &CgroupName| CgroupUsage::read(&inner.tree, &format!("{}/{name}", inner.path(pod)));
        inner.names(uid).iter().map(used).find(|u| u.memory.is_some() || u.cpu_nanos.is_some()).unwrap_or_default()
    }

    /// The path of the cgroup of all pods.
    pub fn all_pods(&self) -> Option<String> {
        self.inner.as_ref().map(|i| format!("/{}", i.path(&i.pods)))
    }

    /// How many processes and threads a pod has. Reads a file of the kernel's.
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
    /// Makes a cgroup and holds it to its bounds.
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
            // What a kernel does not offer is no reason to run no pods at all.
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
        // Said already; what comes of it shows when the containers are held to theirs.
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

    /// The cgroup of a pod, whatever its class.
    fn names(&self, uid: &str) -> [CgroupName; 3] {
        let of = |class: CgroupName| class.join(format!("pod{uid}"));
        [of(self.pods.clone()), of(self.pods.join(CLASSES[0])), of(self.pods.join(CLASSES[1]))]
    }

    /// Where a pod's cgroups are, whatever its class.
    fn trees(&self, uid: &str) -> Vec<PathBuf> {
        self.names(uid).iter().flat_map(|name| self.tree.directories(&self.path(name))).collect()
    }
}

#[cfg(test)]
mod tests;
