//! Measurements and actions of the eviction manager on a real node: kernel statistics, the runtime's statistics, pods' directories.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kelson_client::EventType;
use kelson_cri::{Runtime, proto as cri};
use kelson_tasks::{FILES, Lane};
use tokio::sync::OnceCell;

use super::Effects;
use super::rank::{ContainerUsage, PodUsage, Usages};
use super::tracker::{Observation, Observations};
use crate::cgroups::Cgroups;
use crate::cgroups::node::PodsMemory;
use crate::config::PodDirs;
use crate::config::thresholds::{EVICTED, Signal};
use crate::effects::EventReporter;
use crate::images::gc::is_kept;
use crate::metrics::Metrics;
use crate::node::facts;
use crate::pod;
use crate::pods::event::Eviction;
use crate::pods::inbox::ManagerInbox;
use crate::pods::known::PodRegistry;
use crate::runtime::labels;
use crate::volumes::container::{CONTAINERS_DIR, HOSTS_FILE};
use crate::volumes::empty_dir::PLUGIN;
use crate::volumes::usage::disk_usage;

/// Lane for walking pods' directories, which can take long. It is separate from the file operations that pods wait for.
static USAGE: Lane = Lane::new("pod-usage", 1);

/// [`Effects`] on a real node.
#[derive(Clone)]
pub struct NodeEffects {
    parts: Arc<EvictionParts>,
    /// Path of the runtime's image file system, which never changes.
    image_fs: Arc<OnceCell<PathBuf>>,
}

/// Dependencies of measurements and evictions.
pub struct EvictionParts {
    /// Client of the container runtime (CRI).
    pub runtime: Arc<dyn Runtime>,
    /// The kubelet's root directory, whose file system is `nodefs`.
    pub root_dir: PathBuf,
    /// Paths of pods' directories and logs.
    pub dirs: PodDirs,
    /// Names of images that are never removed.
    pub kept_images: Vec<String>,
    /// Reads the usage of pods.
    pub cgroups: Cgroups,
    /// Counters of evictions.
    pub metrics: Arc<Metrics>,
    /// The pods of this node.
    pub known: PodRegistry,
    /// Receives requests to evict pods.
    pub manager: ManagerInbox,
    /// Records events about pods.
    pub events: EventReporter,
}

impl NodeEffects {
    /// Creates the effects with these dependencies.
    pub fn new(parts: EvictionParts) -> Self {
        Self { parts: Arc::new(parts), image_fs: Arc::default() }
    }

    async fn image_fs(&self) -> Option<&PathBuf> {
        let ask = async || {
            let info = self.parts.runtime.image_fs_info().await?;
            let at = info.image_filesystems.into_iter().next().and_then(|f| f.fs_id);
            Ok::<_, kelson_cri::CriError>(at.map_or_else(|| "/".into(), |f| PathBuf::from(f.mountpoint)))
        };
        self.image_fs.get_or_try_init(ask).await.ok()
    }
}

/// Free bytes and inodes of a path's file system.
fn file_system(path: &Path) -> Option<(Observation, Option<Observation>)> {
    let s = rustix::fs::statvfs(path).ok()?;
    let bytes = Observation { available: s.f_bavail * s.f_frsize, capacity: s.f_blocks * s.f_frsize };
    // File systems without an inode table report 0.
    let inodes = (s.f_files > 0).then_some(Observation { available: s.f_favail, capacity: s.f_files });
    Some((bytes, inodes))
}

#[async_trait]
impl Effects for NodeEffects {
    async fn observe(&self) -> Observations {
        let (root, images) = (self.parts.root_dir.clone(), self.image_fs().await.cloned());
        let cgroups = self.parts.cgroups.clone();
        let look = move || {
            let mut seen = observe(&root, images.as_deref());
            let of_pods = cgroups.memory_of_pods();
            let left = |m: PodsMemory| Observation { available: m.limit.saturating_sub(m.used), capacity: m.limit };
            seen.extend(of_pods.map(|m| (Signal::AllocatableMemoryAvailable, left(m))));
            seen
        };
        FILES.run(look).await.unwrap_or_default()
    }

    fn active(&self) -> Vec<Arc<Pod>> {
        let alive = |p: &Arc<Pod>| !pod::is_terminal(p) && !pod::is_deleted(p);
        self.parts.known.list().into_iter().filter(alive).collect()
    }

    async fn usages(&self, pods: &[Arc<Pod>]) -> Usages {
        let stats = self.parts.runtime.list_container_stats(None).await.unwrap_or_default();
        let (parts, pods) = (Arc::clone(&self.parts), pods.to_vec());
        let work = USAGE.run(move || pods.iter().map(|p| (pod::uid(p).to_owned(), usage(&parts, p, &stats))).collect());
        work.await.unwrap_or_default()
    }

    async fn reclaim_disk(&self) {
        if let Err(e) = reclaim(&self.parts).await {
            tracing::warn!(error = %e, "reclaiming disk space failed");
        }
    }

    fn attempting(&self, resource: &str) {
        let text = format!("Attempting to reclaim {resource}");
        self.parts.events.node(EventType::Warning, "EvictionThresholdMet", text);
    }

    fn evict(&self, pod: &Arc<Pod>, signal: &'static str, message: String, grace: Duration) {
        self.parts.metrics.evicted(signal);
        tracing::warn!(pod = %pod::format_pod(pod), message, "evicting a pod");
        self.parts.events.pod(pod, EventType::Warning, EVICTED, message.clone());
        self.parts.manager.evict(pod::uid(pod), Eviction { reason: EVICTED, message, grace });
    }
}

fn observe(root: &Path, images: Option<&Path>) -> Observations {
    let mut out = Observations::new();
    let memory = facts::machine_memory();
    let number = |n: i64| u64::try_from(n).unwrap_or(0);
    if memory.total > 0 {
        let seen = Observation { available: number(memory.available), capacity: number(memory.total) };
        out.insert(Signal::MemoryAvailable, seen);
    }
    if let Some((bytes, inodes)) = file_system(root) {
        out.insert(Signal::NodeFsAvailable, bytes);
        out.extend(inodes.map(|i| (Signal::NodeFsInodesFree, i)));
    }
    if let Some((bytes, inodes)) = images.and_then(file_system) {
        out.insert(Signal::ImageFsAvailable, bytes);
        out.extend(inodes.map(|i| (Signal::ImageFsInodesFree, i)));
    }
    if let Some((used, max)) = facts::processes() {
        out.insert(Signal::PidAvailable, Observation { available: max.saturating_sub(used), capacity: max });
    }
    out
}

fn usage(parts: &EvictionParts, pod: &Pod, stats: &[cri::ContainerStats]) -> PodUsage {
    let uid = pod::uid(pod);
    let logs = parts.dirs.pod_logs(pod::namespace(pod), pod::name(pod), uid);
    let mut containers: BTreeMap<String, ContainerUsage> = BTreeMap::new();
    for s in stats {
        let Some(a) = s.attributes.as_ref().filter(|a| a.labels.get(labels::POD_UID).is_some_and(|u| u == uid)) else {
            continue;
        };
        let name = a.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default();
        let value = |v: Option<&cri::UInt64Value>| v.map_or(0, |v| v.value);
        let c = containers.entry(name).or_default();
        c.memory += value(s.memory.as_ref().and_then(|m| m.working_set_bytes.as_ref()));
        c.rootfs += value(s.writable_layer.as_ref().and_then(|w| w.used_bytes.as_ref()));
    }
    for (name, c) in &mut containers {
        c.logs = disk_usage(&logs.join(name));
    }
    let dir = parts.dirs.pod(uid);
    let volumes = dir.join("volumes").join(PLUGIN);
    let on_disk = pod
        .spec
        .iter()
        .flat_map(|s| s.volumes.iter().flatten())
        .filter(|v| v.empty_dir.as_ref().is_some_and(|e| e.medium.as_deref().unwrap_or_default().is_empty()));
    PodUsage {
        containers,
        empty_dirs: on_disk.map(|v| (v.name.clone(), disk_usage(&volumes.join(&v.name)))).collect(),
        own_files: own_files(&dir),
        processes: parts.cgroups.processes(uid).unwrap_or(0),
    }
}

/// Size in bytes of the files that the kubelet creates for a pod and containers can write: hosts file and termination messages.
fn own_files(pod_dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let hosts = std::fs::symlink_metadata(pod_dir.join(HOSTS_FILE)).map_or(0, |m| m.blocks() * 512);
    hosts + disk_usage(&pod_dir.join(CONTAINERS_DIR))
}

/// Removes old container instances and unused images.
async fn reclaim(ctx: &EvictionParts) -> kelson_cri::CriResult<()> {
    let mut containers = ctx.runtime.list_containers(None).await?;
    containers.sort_by_key(|c| std::cmp::Reverse(c.created_at));
    let mut newest = HashSet::new();
    let exited = cri::ContainerState::ContainerExited as i32;
    for c in &containers {
        let key = (c.pod_sandbox_id.as_str(), c.labels.get(labels::CONTAINER_NAME));
        if !newest.insert(key) && c.state == exited {
            ctx.runtime.remove_container(&c.id).await?;
        }
    }
    let used: HashSet<&str> = containers
        .iter()
        .flat_map(|c| [Some(c.image_ref.as_str()), c.image.as_ref().map(|i| i.image.as_str())])
        .flatten()
        .collect();
    for image in ctx.runtime.list_images(None).await? {
        if is_kept(&image, &ctx.kept_images) {
            continue;
        }
        let names = image.repo_tags.iter().chain(&image.repo_digests).chain([&image.id]);
        if names.into_iter().any(|n| used.contains(n.as_str())) {
            continue;
        }
        tracing::info!(image = image.id, bytes = image.size, "removing an unused image");
        ctx.runtime.remove_image(cri::ImageSpec { image: image.id, ..Default::default() }).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_summed_without_following_links() {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir(dir.path().join("d")).expect("mkdir");
        std::fs::write(dir.path().join("d/f"), vec![1; 100_000]).expect("write");
        std::os::unix::fs::symlink("/", dir.path().join("out")).expect("symlink");
        let used = disk_usage(dir.path());
        assert!((100_000..200_000).contains(&used), "{used}");
        let hosts = dir.path().join(HOSTS_FILE);
        assert_eq!(own_files(dir.path()), 0);
        std::fs::write(&hosts, vec![1; 200_000]).expect("write");
        std::fs::create_dir_all(dir.path().join(CONTAINERS_DIR).join("a")).expect("mkdir");
        std::fs::write(dir.path().join(CONTAINERS_DIR).join("a/00000000"), vec![1; 300_000]).expect("write");
        let own = own_files(dir.path());
        assert!((500_000..600_000).contains(&own), "what containers write through the kubelet's files counts: {own}");
        assert!(file_system(dir.path()).is_some_and(|(b, _)| b.available <= b.capacity));
    }
}
