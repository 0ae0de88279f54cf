//! What volumes are set up with: each kind of volume takes what it uses.
use std::path::PathBuf;
use std::sync::Arc;

use kelson_meta::Clock;
use tokio::sync::watch;

use super::csi::{CsiVolumes, VolumeGrowth};
use super::mounts::Mounts;
use super::persistent::Claims;
use super::usage::VolumeUsages;
use crate::config::PodDirs;
use crate::metrics::StorageMetrics;
use crate::node::facts::NodeFacts;
use crate::objects::Objects;
use crate::objects::tokens::Tokens;

/// What setting volumes up takes; cheap to clone.
#[derive(Clone)]
pub struct Volumes {
    /// Where pods' directories lie.
    pub dirs: PodDirs,
    /// Config maps and secrets.
    pub objects: Objects,
    /// Service account tokens.
    pub tokens: Tokens,
    /// Claims and their volumes.
    pub claims: Claims,
    /// Where volumes of the built-in provisioner lie; `None`: there are none here.
    pub local_volumes: Option<PathBuf>,
    /// Volumes of drivers.
    pub csi: CsiVolumes,
    /// How those grow.
    pub growth: VolumeGrowth,
    /// How full they are.
    pub usages: VolumeUsages,
    /// How long work on them takes.
    pub metrics: Arc<StorageMetrics>,
    /// Mounts and unmounts, as the machine does it or a test notes it.
    pub mounts: Arc<dyn Mounts>,
    /// What pods may see of their node.
    pub node: watch::Receiver<Arc<NodeFacts>>,
    /// The clock that tokens' ends are compared with.
    pub clock: Arc<dyn Clock>,
    /// `--cluster-domain`, for the hosts file.
    pub cluster_domain: String,
}
