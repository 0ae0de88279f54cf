//! What requests are served with.
use std::path::PathBuf;
use std::sync::Arc;

use kelson_bootstrap::CertificateMetrics;
use kelson_cri::Runtime;
use kelson_meta::Clock;
use kelson_tasks::Tasks;

use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::pods::known::Known;

/// The state; behind an `Arc` everywhere.
pub struct ServerState {
    /// The group of the server's tasks.
    pub tasks: Tasks,
    /// Configuration, as `/configz` shows it.
    pub config: Arc<Config>,
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// Its name, e.g. `containerd`.
    pub runtime_name: String,
    /// The pods of this node.
    pub known: Known,
    /// The clock that `sinceSeconds` counts back from.
    pub clock: Arc<dyn Clock>,
    /// Pods' cgroups, for their numbers.
    pub cgroups: Cgroups,
    /// What the kubelet counts.
    pub metrics: Arc<Metrics>,
    /// The numbers of the node's certificates.
    pub certificates: CertificateMetrics,
    /// Where the named pipes of commands lie.
    pub pipes_dir: PathBuf,
}
