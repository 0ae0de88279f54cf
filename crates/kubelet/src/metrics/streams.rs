//! Metrics of streams under upstream's name.
use kelson_metrics::{IntCounterVec, Registry};

/// Counter of streams. Clones share it.
#[derive(Clone, Debug)]
pub struct StreamMetrics {
    websockets: IntCounterVec,
}

impl StreamMetrics {
    /// Registers the metric in `r`.
    pub fn new(r: &Registry) -> Self {
        let websockets = r.counters(
            "kubelet_websocket_streaming_requests_total",
            "Exec, attach and port-forward requests over WebSocket by subresource.",
            &["subresource"],
        );
        Self { websockets }
    }

    /// Counts a stream over WebSocket; `subresource` is `exec`, `attach` or `portforward`.
    pub fn websocket(&self, subresource: &str) {
        self.websockets.with_label_values(&[subresource]).inc();
    }
}
