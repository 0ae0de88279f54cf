//! Dependencies for setting up volumes. Each volume type uses some of them.
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

/// Sets up volumes. Clones share the state.
#[derive(Clone)]
pub struct Volumes {
    /// Paths of pods' directories.
    pub dirs: PodDirs,
    /// ConfigMaps and Secrets.
    pub objects: Objects,
    /// Service account tokens.
    pub tokens: Tokens,
    /// Claims and their PersistentVolumes.
    pub claims: Claims,
    /// Directory of the built-in provisioner's volumes; `None` if the node has none.
    pub local_volumes: Option<PathBuf>,
    /// State of CSI volumes.
    pub csi: CsiVolumes,
    /// Expands CSI volumes.
    pub growth: VolumeGrowth,
    /// Usage of volumes.
    pub usages: VolumeUsages,
    /// Metrics of storage operations.
    pub metrics: Arc<StorageMetrics>,
    /// Executes mount operations.
    pub mounts: Arc<dyn Mounts>,
    /// Facts about the node that pods can read.
    pub node: watch::Receiver<Arc<NodeFacts>>,
    /// Clock for the expiry of tokens.
    pub clock: Arc<dyn Clock>,
    /// `--cluster-domain`, for the hosts file.
    pub cluster_domain: String,
}
