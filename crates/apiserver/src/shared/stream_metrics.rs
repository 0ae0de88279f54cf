//! What is counted of streams that this server carries to kubelets, under upstream's names.
use http::StatusCode;
use kelson_metrics::{IntCounterVec, Registry};

/// Who makes what a WebSocket's client says into what the runtime understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TranslatedBy {
    /// This server, which speaks SPDY to the kubelet.
    Server,
    /// The kubelet, or the runtime behind it: bytes pass through here as they are.
    Kubelet,
}

/// Counters of one server, shared by all of its streams.
#[derive(Clone, Debug)]
pub struct StreamMetrics {
    translated: IntCounterVec,
    tunnelled: IntCounterVec,
    websockets: IntCounterVec,
}

impl StreamMetrics {
    /// Nothing counted yet; shown by `r`, once.
    pub fn new(r: &Registry) -> Self {
        Self {
            translated: r.counters(
                "apiserver_stream_translator_requests_total",
                "WebSockets of exec and attach that were translated to SPDY here, by how they ended.",
                &["code"],
            ),
            tunnelled: r.counters(
                "apiserver_stream_tunnel_requests_total",
                "WebSockets of port-forwards in which SPDY was carried, by the answer to them.",
                &["code"],
            ),
            websockets: r.counters(
                "apiserver_websocket_streaming_requests_total",
                "WebSockets of exec, attach and port-forward, by who translates them.",
                &["subresource", "proxy_type"],
            ),
        }
    }

    /// A client asked for `subresource` (`exec`, `attach`, `portforward`) over a WebSocket.
    pub fn websocket(&self, subresource: &str, by: TranslatedBy) {
        let by = match by {
            TranslatedBy::Server => "translated_at_apiserver",
            TranslatedBy::Kubelet => "proxied_to_kubelet",
        };
        self.websockets.with_label_values(&[subresource, by]).inc();
    }

    /// An exec or attach that was translated has ended, or was refused, so. A command that failed by itself was carried well.
    pub fn translated(&self, code: StatusCode) {
        self.translated.with_label_values(&[code.as_str()]).inc();
    }

    /// A port-forward was answered so.
    pub fn tunnelled(&self, code: StatusCode) {
        self.tunnelled.with_label_values(&[code.as_str()]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn under_upstreams_names() {
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
