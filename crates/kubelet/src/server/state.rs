//! What requests are served with.
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
use crate::pods::known::Known;
use crate::spans::Spans;
use crate::status::writer::StatusWriter;
use crate::volumes::usage::VolumeUsages;

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
    /// Knows by which mirror pod the API shows a static pod.
    pub statuses: StatusWriter,
    /// The clock that `sinceSeconds` counts back from.
    pub clock: Arc<dyn Clock>,
    /// Pods' cgroups, for their numbers.
    pub cgroups: Cgroups,
    /// What the kubelet counts.
    pub metrics: Arc<Metrics>,
    /// Who is told of requests.
    pub spans: Spans,
    /// What is counted of that.
    pub traced: Option<Registry>,
    /// The numbers of the node's certificates.
    pub certificates: CertificateMetrics,
    /// How full pods' volumes are.
    pub volumes: VolumeUsages,
    /// How fast CPU time grew between answers.
    pub rates: Rates,
    /// Where the named pipes of commands lie.
    pub pipes_dir: PathBuf,
}

impl ServerState {
    /// Counts a request for a stream, where it is a WebSocket that ends here and not in the runtime.
    pub fn count_websocket(&self, subresource: &str, ends_here: bool) {
        if ends_here {
            self.metrics.streams().websocket(subresource);
        }
    }

    /// The pod that a request names, by its UID too where it gives one.
    pub fn find_pod(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Arc<Pod>> {
        self.known.find_exactly(namespace, name, uid, |own| self.statuses.mirror_of(own))
    }
}
