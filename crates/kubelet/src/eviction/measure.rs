//! What the eviction manager sees and does on a real node: the kernel's numbers, the runtime's statistics, the pods'
//! directories.
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Node, Pod};
use kelson_client::{EventType, ObjectRef};
use kelson_cri::proto as cri;
use tokio::sync::{OnceCell, mpsc};

use super::rank::{ContainerUsage, PodUsage, Usages};
use super::thresholds::{Observation, Observations, Signal};
use super::{Effects, REASON};
use crate::effects::Context;
use crate::images::gc::is_kept;
use crate::node::facts;
use crate::pod;
use crate::pods::manager::{Known, Signal as ToManager};
use crate::runtime::labels;

/// Files and directories looked at to sum up one directory; a pod that makes more is counted for these.
const ENTRIES_MAX: usize = 1_000_000;

/// The real effects.
pub struct Real {
    ctx: Arc<Context>,
    known: Known,
    manager: mpsc::UnboundedSender<ToManager>,
    /// Where the runtime keeps images; it does not move.
    image_fs: OnceCell<PathBuf>,
}

impl Real {
    /// For the pods in `known`; evictions are told to `manager`.
    pub fn new(ctx: Arc<Context>, known: Known, manager: mpsc::UnboundedSender<ToManager>) -> Self {
        Self { ctx, known, manager, image_fs: OnceCell::new() }
    }

    async fn image_fs(&self) -> Option<&PathBuf> {
        let ask = async || {
            let info = self.ctx.runtime.image_fs_info().await?;
            let at = info.image_filesystems.into_iter().next().and_then(|f| f.fs_id);
            Ok::<_, kelson_cri::CriError>(at.map_or_else(|| "/".into(), |f| PathBuf::from(f.mountpoint)))
        };
        self.image_fs.get_or_try_init(ask).await.ok()
    }
}

/// Bytes and inodes of the file system a path is on.
fn file_system(path: &Path) -> Option<(Observation, Option<Observation>)> {
    let s = rustix::fs::statvfs(path).ok()?;
    let bytes = Observation { available: s.f_bavail * s.f_frsize, capacity: s.f_blocks * s.f_frsize };
    // File systems without a table of inodes tell none.
    let inodes = (s.f_files > 0).then_some(Observation { available: s.f_favail, capacity: s.f_files });
    Some((bytes, inodes))
}

/// Bytes a directory takes, links not followed.
fn disk_usage(root: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let (mut bytes, mut left, mut entries) = (0, vec![root.to_owned()], 0);
    while let Some(dir) = left.pop() {
        for e in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(m) = e.metadata() else { continue };
            bytes += m.blocks() * 512;
            if m.is_dir() {
                left.push(e.path());
            }
            entries += 1;
            if entries >= ENTRIES_MAX {
                return bytes;
            }
        }
    }
    bytes
}

#[async_trait]
impl Effects for Real {
    async fn observe(&self) -> Observations {
        let mut out = Observations::new();
        let memory = facts::machine_memory();
        let number = |n: i64| u64::try_from(n).unwrap_or(0);
        if memory.total > 0 {
            let seen = Observation { available: number(memory.available), capacity: number(memory.total) };
            out.insert(Signal::MemoryAvailable, seen);
        }
        if let Some((bytes, inodes)) = file_system(&self.ctx.config.root_dir) {
            out.insert(Signal::NodeFsAvailable, bytes);
            out.extend(inodes.map(|i| (Signal::NodeFsInodesFree, i)));
        }
        if let Some((bytes, inodes)) = self.image_fs().await.and_then(|p| file_system(p)) {
            out.insert(Signal::ImageFsAvailable, bytes);
            out.extend(inodes.map(|i| (Signal::ImageFsInodesFree, i)));
        }
        if let Some((used, max)) = facts::processes() {
            out.insert(Signal::PidAvailable, Observation { available: max.saturating_sub(used), capacity: max });
        }
        out
    }

    fn active(&self) -> Vec<Arc<Pod>> {
        let alive = |p: &Arc<Pod>| !pod::is_terminal(p) && !pod::is_deleted(p);
        self.known.list().into_iter().filter(alive).collect()
    }

    async fn usages(&self, pods: &[Arc<Pod>]) -> Usages {
        let stats = self.ctx.runtime.list_container_stats(None).await.unwrap_or_default();
        let (ctx, pods) = (Arc::clone(&self.ctx), pods.to_vec());
        let work = tokio::task::spawn_blocking(move || {
            pods.iter().map(|p| (pod::uid(p).to_owned(), usage(&ctx, p, &stats))).collect()
        });
        work.await.unwrap_or_default()
    }

    async fn reclaim_disk(&self) {
        if let Err(e) = reclaim(&self.ctx).await {
            tracing::warn!(error = %e, "disk not reclaimed");
        }
    }

    fn attempting(&self, resource: &str) {
        let mut node = Node::default();
        node.metadata.name = Some(self.ctx.config.node_name.clone());
        node.metadata.uid = Some(self.ctx.config.node_name.clone());
        let text = format!("Attempting to reclaim {resource}");
        self.ctx.recorder.event(&ObjectRef::of(&node), EventType::Warning, "EvictionThresholdMet", text);
    }

    fn evict(&self, pod: &Arc<Pod>, message: String, grace: Duration) {
        tracing::warn!(pod = %pod::format_pod(pod), message, "evicting");
        self.ctx.event(pod, EventType::Warning, REASON, message.clone());
        // The manager ends with the kubelet: nobody to tell is no fault.
        let _ = self.manager.send(ToManager::Evict { uid: pod::uid(pod).to_owned(), message, grace });
    }
}

fn usage(ctx: &Context, pod: &Pod, stats: &[cri::ContainerStats]) -> PodUsage {
    let uid = pod::uid(pod);
    let logs = ctx.config.pod_log_dir(pod::namespace(pod), pod::name(pod), uid);
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
    let volumes = ctx.config.pod_dir(uid).join("volumes").join("kubernetes.io~empty-dir");
    let on_disk = pod
        .spec
        .iter()
        .flat_map(|s| s.volumes.iter().flatten())
        .filter(|v| v.empty_dir.as_ref().is_some_and(|e| e.medium.as_deref().unwrap_or_default().is_empty()));
    PodUsage {
        containers,
        empty_dirs: on_disk.map(|v| (v.name.clone(), disk_usage(&volumes.join(&v.name)))).collect(),
        processes: ctx.cgroups.processes(uid).unwrap_or(0),
    }
}

/// Removes dead containers that have a successor, and images that no container uses.
async fn reclaim(ctx: &Context) -> kelson_cri::CriResult<()> {
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
        if is_kept(&image, &ctx.config.kept_images) {
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
        assert!(file_system(dir.path()).is_some_and(|(b, _)| b.available <= b.capacity));
    }
}
