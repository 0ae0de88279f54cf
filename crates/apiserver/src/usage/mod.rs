//! Resource usage of nodes and pods: the API `metrics.k8s.io`, which clusters usually get from metrics-server. The kubelets are asked by
//! a background task (`extend/usage`), their reports are kept here, and `reviews/usage` answers requests from them.
pub mod exposition;
pub mod kinds;
pub mod samples;

use kelson_metrics::{IntCounter, IntGaugeVec, Registry};
use parking_lot::RwLock;

pub use samples::RESOLUTION;
use samples::Samples;

/// The API group.
pub const GROUP: &str = "metrics.k8s.io";
/// The version of the group.
pub const VERSION: &str = "v1beta1";
/// Group and version priority of its APIService: those of metrics-server's manifest.
pub const PRIORITIES: (u32, u32) = (100, 100);

/// The last reports of the kubelets, and counters of the requests for them.
pub struct ResourceMetrics {
    /// The samples of all nodes.
    pub samples: RwLock<Samples>,
    succeeded: IntCounter,
    failed: IntCounter,
    points: IntGaugeVec,
}

impl ResourceMetrics {
    /// Starts without samples, and registers metrics under metrics-server's names.
    pub fn new(registry: &Registry) -> Self {
        let requests = registry.counters(
            "metrics_server_kubelet_request_total",
            "Requests to kubelets for the resource usage of their pods.",
            &["success"],
        );
        let points = registry.gauges(
            "metrics_server_storage_points",
            "Nodes and containers whose resource usage is known.",
            &["type"],
        );
        let (succeeded, failed) = (requests.with_label_values(&["true"]), requests.with_label_values(&["false"]));
        Self { samples: RwLock::default(), succeeded, failed, points }
    }

    /// Counts a request to a kubelet.
    pub fn count_request(&self, is_success: bool) {
        if is_success { self.succeeded.inc() } else { self.failed.inc() }
    }

    /// Updates the number of stored points.
    pub fn show_points(&self) {
        let (nodes, containers) = self.samples.read().points();
        for (kind, count) in [("node", nodes), ("container", containers)] {
            self.points.with_label_values(&[kind]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
