//! Volumes of pods: setting them up below the pod's directory, keeping configuration in them fresh, the mounts of each
//! container, and taking all of it down again.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

mod atomic;
mod claim;
mod config_map;
pub mod container;
pub mod csi;
mod downward_api;
pub mod empty_dir;
mod files;
mod host_path;
mod image;
pub mod mounts;
mod nfs;
mod ownership;
mod parts;
pub mod persistent;
mod plugin;
mod projected;
mod render;
mod secret;
mod source;
mod subpath;
pub mod usage;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};
use kelson_tasks::Lane;
use tokio::time::Instant;

pub use parts::Volumes;
pub use source::Ready;

use mounts::Mounts;
use source::{Request, Source};

use crate::pod;

/// The kinds of volumes. A volume without a kind here is refused.
const SOURCES: &[&dyn Source] = &[
    &config_map::ConfigMap,
    &secret::Secret,
    &downward_api::DownwardApi,
    &projected::Projected,
    &empty_dir::EmptyDir,
    &host_path::HostPath,
    &claim::Claim,
    &nfs::Nfs,
    &csi::Inline,
    &image::Image,
];

/// Removal of pods' directories, which takes as long as they are large: apart from all other file work, so that pods
/// that start do not wait for those that go.
static REMOVALS: Lane = Lane::new("pod-removal", 4);

/// Why a volume is not there; the text is that of the FailedMount event.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// It could not be set up.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {reason}")]
    SetUp {
        /// The volume's name in the pod.
        volume: String,
        /// What went wrong, for the pod's events.
        reason: String,
    },
    /// Its claim has nothing to set up yet.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], \
         failed to process volumes=[{volume}]: {reason}"
    )]
    Claim {
        /// The volume's name in the pod.
        volume: String,
        /// What went wrong, for the pod's events.
        reason: String,
    },
}

/// The volumes of one pod, by name.
#[derive(Clone, Debug, Default)]
pub struct PodVolumes {
    /// What is set up.
    pub ready: HashMap<String, Ready>,
    /// When rendered volumes must be looked at though nothing changed (tokens).
    pub renew_at: Option<Timestamp>,
}

impl PodVolumes {
    /// Where the content of a volume lies on the host; `None` of what is not set up, or lies in no directory of the host.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        match self.ready.get(name)? {
            Ready::Path { path, .. } => Some(path.clone()),
            Ready::Device { .. } | Ready::Image { .. } => None,
        }
    }
}

/// Whether a volume's files may change while its pod runs.
pub fn follows_api(volume: &Volume) -> bool {
    SOURCES.iter().any(|s| s.is(volume) && s.follows_api())
}

impl Volumes {
    /// Sets up, or brings up to date, every volume of the pod.
    ///
    /// # Errors
    /// The first volume that cannot be had.
    pub async fn ensure(&self, pod: &Pod) -> Result<PodVolumes, VolumeError> {
        let mut out = PodVolumes::default();
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let fail = |reason: String| VolumeError::SetUp { volume: volume.name.clone(), reason };
            let Some(source) = SOURCES.iter().find(|s| s.is(volume)) else {
                let known = "configMap, secret, downwardAPI, projected, emptyDir, hostPath, nfs, csi and image volumes and claims";
                return Err(fail(format!("no volume plugin matched: this kubelet serves {known}")));
            };
            let unbound = |reason| VolumeError::Claim { volume: volume.name.clone(), reason };
            let persistent = self.claims.resolve(pod, volume).await.map_err(unbound)?;
            let request = Request { volumes: self, pod, volume, persistent };
            let plugin = plugin::plugin_name(volume, request.persistent.as_deref());
            let work = self.metrics.mount(pod::uid(pod), &volume.name, plugin);
            let done = source.set_up(&request).await;
            work.ended(done.is_ok());
            let done = done.map_err(fail)?;
            out.renew_at = out.renew_at.into_iter().chain(done.renew_at).min();
            out.ready.insert(volume.name.clone(), done.ready);
        }
        self.usages.set_up(pod, |name| out.path(name));
        Ok(out)
    }

    /// Takes a pod's volumes and directory down. Never crosses into a mount: what cannot be unmounted stops it.
    ///
    /// # Errors
    /// When something stays; it can be tried again.
    pub async fn tear_down(&self, uid: &str) -> io::Result<()> {
        if uid.is_empty() || uid.contains('/') || uid.starts_with('.') {
            return Err(io::Error::other("not a pod's UID"));
        }
        let began = Instant::now();
        let done = self.take_down(uid).await;
        self.metrics.unmounted(uid, done.is_ok(), began.elapsed());
        done
    }

    async fn take_down(&self, uid: &str) -> io::Result<()> {
        self.csi.tear_down(&self.dirs, uid).await.map_err(io::Error::other)?;
        self.claims.forget(uid);
        self.usages.forget(uid);
        let (dir, mounts) = (self.dirs.pod(uid), Arc::clone(&self.mounts));
        REMOVALS.run(move || remove(&*mounts, &dir)).await.map_err(io::Error::other)?
    }
}

fn remove(mounts: &dyn Mounts, dir: &Path) -> io::Result<()> {
    let mut failed = None;
    for mount in mounts.below(dir) {
        if let Err(e) = mounts.unmount(&mount) {
            failed = Some(e);
        }
    }
    if let Some(e) = failed {
        return Err(e);
    }
    if !mounts.below(dir).is_empty() {
        return Err(io::Error::other(format!("{} still has mounts", dir.display())));
    }
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
