//! Metrics of streams to kubelets under upstream's names.
use http::StatusCode;
use kelson_metrics::{IntCounterVec, Registry};

/// The component that translates a WebSocket into the runtime's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TranslatedBy {
    /// This server, which speaks SPDY to the kubelet.
    Server,
    /// The kubelet or its runtime; this server passes the bytes through.
    Kubelet,
}

/// Stream metrics of one server.
#[derive(Clone, Debug)]
pub struct StreamMetrics {
    translated: IntCounterVec,
    tunnelled: IntCounterVec,
    websockets: IntCounterVec,
}

impl StreamMetrics {
    /// Registers the metrics; called once per registry.
    pub fn new(r: &Registry) -> Self {
        Self {
            translated: r.counters(
                "apiserver_stream_translator_requests_total",
                "WebSockets of exec and attach that this server translated to SPDY, by resulting status code.",
                &["code"],
            ),
            tunnelled: r.counters(
                "apiserver_stream_tunnel_requests_total",
                "WebSockets of port-forward that tunnel SPDY, by status code of the answer.",
                &["code"],
            ),
            websockets: r.counters(
                "apiserver_websocket_streaming_requests_total",
                "WebSockets of exec, attach and port-forward, by where they are translated.",
                &["subresource", "proxy_type"],
            ),
        }
    }

    /// Counts a request for `subresource` (`exec`, `attach`, `portforward`) over a WebSocket.
    pub fn websocket(&self, subresource: &str, by: TranslatedBy) {
        let by = match by {
            TranslatedBy::Server => "translated_at_apiserver",
            TranslatedBy::Kubelet => "proxied_to_kubelet",
        };
        self.websockets.with_label_values(&[subresource, by]).inc();
    }

    /// Counts the end of a translated exec or attach. A command that failed counts as 200.
    pub fn translated(&self, code: StatusCode) {
        self.translated.with_label_values(&[code.as_str()]).inc();
    }

    /// Counts the response to a port-forward.
    pub fn tunnelled(&self, code: StatusCode) {
        self.tunnelled.with_label_values(&[code.as_str()]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_upstreams_names() {
        let registry = Registry::new();
        let metrics = StreamMetrics::new(&registry);
        metrics.websocket("exec", TranslatedBy::Server);
        metrics.websocket("portforward", TranslatedBy::Kubelet);
        metrics.translated(StatusCode::OK);
        metrics.tunnelled(StatusCode::SWITCHING_PROTOCOLS);
        let text = registry.text();
        for line in [
            "apiserver_stream_translator_requests_total{code=\"200\"} 1",
            "apiserver_stream_tunnel_requests_total{code=\"101\"} 1",
            "apiserver_websocket_streaming_requests_total{proxy_type=\"translated_at_apiserver\",subresource=\"exec\"} 1",
            "apiserver_websocket_streaming_requests_total{proxy_type=\"proxied_to_kubelet\",subresource=\"portforward\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
