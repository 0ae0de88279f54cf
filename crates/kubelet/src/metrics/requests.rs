//! Metrics of requests to the kubelet's server.
use kelson_metrics::{HistogramVec, IntCounterVec, IntGaugeVec, Registry};

use super::bounds::USUAL_BOUNDS;

/// Counters, gauges and histograms of requests.
#[derive(Debug)]
pub struct Requests {
    received: IntCounterVec,
    seconds: HistogramVec,
    open: IntGaugeVec,
}

impl Requests {
    /// Registers the metrics in `r`.
    pub fn new(r: &Registry) -> Self {
        let labels = ["method", "path", "server_type", "long_running"];
        Self {
            received: r.counters(
                "kubelet_http_requests_total",
                "Requests to the kubelet's server by method, path and server type.",
                &labels,
            ),
            seconds: r.histograms(
                "kubelet_http_requests_duration_seconds",
                "Seconds until the headers of the response are sent.",
                &labels,
                &USUAL_BOUNDS,
            ),
            open: r.gauges("kubelet_http_inflight_requests", "Requests without a response yet.", &labels),
        }
    }

    /// Counts a request in flight. Dropping the returned value records its end.
    pub fn open(&self, method: &str, path: &'static str, long_running: bool) -> OpenRequest<'_> {
        let method = method.to_owned();
        let request = OpenRequest { requests: self, method, path, long_running, began: tokio::time::Instant::now() };
        self.received.with_label_values(&request.labels()).inc();
        self.open.with_label_values(&request.labels()).inc();
        request
    }
}

/// A request in flight.
#[derive(Debug)]
pub struct OpenRequest<'a> {
    requests: &'a Requests,
    method: String,
    path: &'static str,
    long_running: bool,
    began: tokio::time::Instant,
}

impl OpenRequest<'_> {
    fn labels(&self) -> [&str; 4] {
        [&self.method, self.path, "readwrite", if self.long_running { "true" } else { "false" }]
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let labels = self.labels();
        self.requests.open.with_label_values(&labels).dec();
        self.requests.seconds.with_label_values(&labels).observe(self.began.elapsed().as_secs_f64());
    }
}
