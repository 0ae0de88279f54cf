//! Shared state of the endpoints.
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kelson_bootstrap::CertificateMetrics;
use kelson_cri::Runtime;
use kelson_meta::Clock;
use kelson_metrics::Registry;
use kelson_tasks::Tasks;

use super::metrics::rates::Rates;
use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::pods::known::PodRegistry;
use crate::spans::Spans;
use crate::status::writer::StatusWriter;
use crate::volumes::usage::VolumeUsages;

/// State of the server, always behind an `Arc`.
pub struct ServerState {
    /// Group of the server's tasks.
    pub tasks: Tasks,
    /// Configuration, as shown by `/configz`.
    pub config: Arc<Config>,
    /// Client of the container runtime (CRI).
    pub runtime: Arc<dyn Runtime>,
    /// Name of the runtime, for example `containerd`.
    pub runtime_name: String,
    /// The pods of this node.
    pub known: PodRegistry,
    /// Returns the mirror pods of static pods.
    pub statuses: StatusWriter,
    /// Clock for `sinceSeconds`.
    pub clock: Arc<dyn Clock>,
    /// Statistics of pods' cgroups.
    pub cgroups: Cgroups,
    /// Metrics of the kubelet.
    pub metrics: Arc<Metrics>,
    /// Records spans of requests.
    pub spans: Spans,
    /// Metrics of the trace exporter.
    pub traced: Option<Registry>,
    /// Metrics of the node's certificates.
    pub certificates: CertificateMetrics,
    /// Usage of pods' volumes.
    pub volumes: VolumeUsages,
    /// CPU usage rates between readings.
    pub rates: Rates,
    /// Directory of named pipes for exec.
    pub pipes_dir: PathBuf,
}

impl ServerState {
    /// Counts a stream request over WebSocket that is terminated here instead of in the runtime.
    pub fn count_websocket(&self, subresource: &str, ends_here: bool) {
        if ends_here {
            self.metrics.streams().websocket(subresource);
        }
    }

    /// Finds the pod of a request, checking the UID if there is one.
    pub fn find_pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Arc<Pod>> {
        self.known.find_exactly(namespace, name, uid, |own| self.statuses.mirror_of(own))
    }
}
