//! What is counted of calls to etcd, under upstream's names (`storage/etcd3/metrics`).

use std::time::Duration;

use kelson_metrics::{HistogramVec, IntCounterVec, IntGaugeVec, Registry};

/// Upper bounds of the buckets of a call's time, in seconds, as upstream's.
const CALL_S: &[f64] =
    &[0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0];

/// Counters and times of calls, and the size of etcd's data.
pub(crate) struct Metrics {
    pub registry: Registry,
    seconds: HistogramVec,
    requests: IntCounterVec,
    errors: IntCounterVec,
    bytes: IntGaugeVec,
}

impl Metrics {
    pub fn new() -> Self {
        let r = Registry::new();
        let of = ["operation"];
        Self {
            seconds: r.histograms("etcd_request_duration_seconds", "Latency of etcd requests in seconds.", &of, CALL_S),
            requests: r.counters("etcd_requests_total", "Requests to etcd.", &of),
            errors: r.counters("etcd_request_errors_total", "Failed requests to etcd.", &of),
            bytes: r.gauges(
                "apiserver_storage_size_bytes",
                "Size of etcd's database file in bytes.",
                &["storage_cluster_id"],
            ),
            registry: r,
        }
    }

    /// A call is over.
    pub fn called(&self, operation: &str, took: Duration, done: bool) {
        self.seconds.with_label_values(&[operation]).observe(took.as_secs_f64());
        self.requests.with_label_values(&[operation]).inc();
        if !done {
            self.errors.with_label_values(&[operation]).inc();
        }
    }

    /// Sets the size of the data of the member that was asked, in bytes on its disk.
    pub fn size(&self, bytes: i64) {
        self.bytes.with_label_values(&["etcd-0"]).set(bytes);
    }
}
