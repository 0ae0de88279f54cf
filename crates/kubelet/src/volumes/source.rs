//! The interface of volume types. Each type is one file that implements [`Source`] and one row in the table of `mod.rs`.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};

pub(super) use super::files::{in_files, make_dir};
use super::parts::Volumes;
use super::persistent::Persistent;

/// A volume that is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A directory or file of the host.
    Path {
        /// Host path of the content.
        path: PathBuf,
        /// Whether containers cannot write to it.
        read_only: bool,
    },
    /// A block device of the host.
    Device {
        /// Host path of the device.
        path: PathBuf,
        /// Whether containers can only read it.
        read_only: bool,
    },
    /// An image that the runtime mounts.
    Image {
        /// Reference of the image in the pod's spec.
        reference: String,
        /// Pull policy of the image (`image.pullPolicy`).
        policy: Option<String>,
    },
}

/// Result of setting up a volume.
#[derive(Debug)]
pub(super) struct SetUp {
    pub(super) ready: Ready,
    /// When the volume must be updated even without another change (tokens).
    pub(super) renew_at: Option<Timestamp>,
}

impl From<Ready> for SetUp {
    fn from(ready: Ready) -> Self {
        Self { ready, renew_at: None }
    }
}

/// A volume of a pod that must be set up or updated.
pub(super) struct Request<'a> {
    pub(super) volumes: &'a Volumes,
    pub(super) pod: &'a Pod,
    pub(super) volume: &'a Volume,
    /// The PersistentVolume, if the volume is a claim.
    pub(super) persistent: Option<Arc<Persistent>>,
}

impl Request<'_> {
    /// Path of the volume: `PODDIR/volumes/PLUGIN/NAME`.
    pub(super) fn dir(&self, plugin: &str) -> PathBuf {
        self.dir_of(plugin, &self.volume.name)
    }

    /// The same with another name than the volume's.
    pub(super) fn dir_of(&self, plugin: &str, name: &str) -> PathBuf {
        let pod = self.volumes.dirs.pod(crate::pod::uid(self.pod));
        pod.join("volumes").join(plugin).join(name)
    }

    /// The pod's `fsGroup`.
    pub(super) fn fs_group(&self) -> Option<u32> {
        let group = self.pod.spec.as_ref()?.security_context.as_ref()?.fs_group?;
        u32::try_from(group).ok()
    }
}

/// A volume type.
#[async_trait]
pub(super) trait Source: Sync {
    /// Returns whether the volume is of this type.
    fn is(&self, volume: &Volume) -> bool;

    /// Returns whether its files can change while the pod runs, because they show API objects or metadata of the pod.
    fn follows_api(&self) -> bool {
        false
    }

    /// Sets up or updates the volume.
    ///
    /// # Errors
    /// The reason for the FailedMount event.
    async fn set_up(&self, request: &Request<'_>) -> Result<SetUp, String>;
}
