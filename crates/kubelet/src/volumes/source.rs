//! What a kind of volume is to the rest of the kubelet. Each kind is one file with its [`Source`], and one row in the
//! table of `mod.rs`.

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
        /// Where the content lies on the host.
        path: PathBuf,
        /// Whether containers may never write to it.
        read_only: bool,
    },
    /// A block device of the host.
    Device {
        /// Where the content lies on the host.
        path: PathBuf,
        /// Whether containers may only read it.
        read_only: bool,
    },
    /// An image that the runtime mounts.
    Image {
        /// The image's reference, as the pod has it.
        reference: String,
        /// When the image of the volume is pulled (`image.pullPolicy`).
        policy: Option<String>,
    },
}

/// The result of one volume's set-up.
#[derive(Debug)]
pub(super) struct SetUp {
    pub(super) ready: Ready,
    /// When its content must be looked at again though nothing changed (tokens).
    pub(super) renew_at: Option<Timestamp>,
}

impl From<Ready> for SetUp {
    fn from(ready: Ready) -> Self {
        Self { ready, renew_at: None }
    }
}

/// One volume of one pod, to be set up or brought up to date.
pub(super) struct Request<'a> {
    pub(super) volumes: &'a Volumes,
    pub(super) pod: &'a Pod,
    pub(super) volume: &'a Volume,
    /// What the volume is bound to, where it is a claim.
    pub(super) persistent: Option<Arc<Persistent>>,
}

impl Request<'_> {
    /// Where a volume is set up: `PODDIR/volumes/PLUGIN/NAME`.
    pub(super) fn dir(&self, plugin: &str) -> PathBuf {
        self.dir_of(plugin, &self.volume.name)
    }

    /// The same for a volume that has a name of its own.
    pub(super) fn dir_of(&self, plugin: &str, name: &str) -> PathBuf {
        let pod = self.volumes.dirs.pod(crate::pod::uid(self.pod));
        pod.join("volumes").join(plugin).join(name)
    }

    /// The group that owns the pod's volumes.
    pub(super) fn fs_group(&self) -> Option<u32> {
        let group = self.pod.spec.as_ref()?.security_context.as_ref()?.fs_group?;
        u32::try_from(group).ok()
    }
}

/// A kind of volume.
#[async_trait]
pub(super) trait Source: Sync {
    /// Whether the volume is of this kind.
    fn is(&self, volume: &Volume) -> bool;

    /// Whether its files show what may change while the pod runs: objects of the API, the pod's own metadata.
    fn follows_api(&self) -> bool {
        false
    }

    /// Sets the volume up, or brings it up to date. The error is the text of the FailedMount event.
    async fn set_up(&self, request: &Request<'_>) -> Result<SetUp, String>;
}
