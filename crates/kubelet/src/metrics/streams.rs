//! Streams that clients asked for, under upstream's name.
use kelson_metrics::{IntCounterVec, Registry};

/// What is counted of them; cheap to clone.
#[derive(Clone, Debug)]
pub struct StreamMetrics {
    websockets: IntCounterVec,
}

impl StreamMetrics {
    /// Nothing counted yet; shown by `r`, once.
    pub fn new(r: &Registry) -> Self {
        let websockets = r.counters(
            "kubelet_websocket_streaming_requests_total",
            "Requests for exec, attach and port-forward that came as WebSockets.",
            &["subresource"],
        );
        Self { websockets }
    }

    /// A client asked for a stream of this kind (`exec`, `attach`, `portforward`) over a WebSocket.
    pub fn websocket(&self, subresource: &str) {
        self.websockets.with_label_values(&[subresource]).inc();
    }
}
