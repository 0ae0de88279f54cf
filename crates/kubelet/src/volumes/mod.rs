//! Volumes of pods: setup below the pod's directory, updates of their contents, the mounts of each container, and removal.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

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

/// All volume types. A volume of another type is rejected.
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

/// Lane for the removal of pods' directories, which can be large. It is separate from other file operations, so that starting pods do not
/// wait for it.
static REMOVALS: Lane = Lane::new("pod-removal", 4);

/// Why a volume is not available. The message is that of the FailedMount event.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Setting up the volume failed.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {reason}")]
    SetUp {
        /// Name of the volume in the pod.
        volume: String,
        /// Reason for the event.
        reason: String,
    },
    /// The claim has no volume that can be set up yet.
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], \
         failed to process volumes=[{volume}]: {reason}"
    )]
    Claim {
        /// Name of the volume in the pod.
        volume: String,
        /// Reason for the event.
        reason: String,
    },
}

/// Volumes of one pod, by name.
#[derive(Clone, Debug, Default)]
pub struct PodVolumes {
    /// Volumes that are set up.
    pub ready: HashMap<String, Ready>,
    /// When volumes with tokens must be updated even without another change.
    pub renew_at: Option<Timestamp>,
}

impl PodVolumes {
    /// Host path of a volume's content; `None` if the volume is not set up or has no path on the host.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        match self.ready.get(name)? {
            Ready::Path { path, .. } => Some(path.clone()),
            Ready::Device { .. } | Ready::Image { .. } => None,
        }
    }
}

/// Returns whether a volume's files may change while the pod runs.
pub fn follows_api(volume: &Volume) -> bool {
    SOURCES.iter().any(|s| s.is(volume) && s.follows_api())
}

impl Volumes {
    /// Sets up or updates every volume of the pod.
    ///
    /// # Errors
    /// The first volume that is not available.
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

    /// Unmounts a pod's volumes and removes its directory. Never removes files below a mount: a failed unmount stops the removal.
    ///
    /// # Errors
    /// Something could not be removed; the call can be repeated.
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
