//! Metrics of calls to the container runtime.
use std::time::Duration;

use kelson_metrics::{HistogramVec, IntCounterVec, Registry, exponential_buckets};

use super::bounds::USUAL_BOUNDS;

/// Counters and histograms of calls to the runtime.
#[derive(Debug)]
pub struct Calls {
    all: IntCounterVec,
    seconds: HistogramVec,
    errors: IntCounterVec,
    sandbox_seconds: HistogramVec,
    sandbox_errors: IntCounterVec,
}

impl Calls {
    /// Registers the metrics in `r`.
    pub fn new(r: &Registry) -> Self {
        let calls = exponential_buckets(0.005, 2.5, 14).unwrap_or_default();
        Self {
            all: r.counters(
                "kubelet_runtime_operations_total",
                "Calls to the container runtime by operation.",
                &["operation_type"],
            ),
            seconds: r.histograms(
                "kubelet_runtime_operations_duration_seconds",
                "Duration of calls to the container runtime in seconds by operation.",
                &["operation_type"],
                &calls,
            ),
            errors: r.counters(
                "kubelet_runtime_operations_errors_total",
                "Failed calls to the container runtime by operation.",
                &["operation_type"],
            ),
            sandbox_seconds: r.histograms(
                "kubelet_run_podsandbox_duration_seconds",
                "Duration of creating a pod sandbox in seconds by runtime handler.",
                &["runtime_handler"],
                &USUAL_BOUNDS,
            ),
            sandbox_errors: r.counters(
                "kubelet_run_podsandbox_errors_total",
                "Failed creations of a pod sandbox by runtime handler.",
                &["runtime_handler"],
            ),
        }
    }

    /// Records the result of a call.
    pub fn ended(&self, operation: &str, took: Duration, fine: bool) {
        self.all.with_label_values(&[operation]).inc();
        self.seconds.with_label_values(&[operation]).observe(took.as_secs_f64());
        if !fine {
            self.errors.with_label_values(&[operation]).inc();
        }
    }

    /// Records the creation of a sandbox or its failure.
    pub fn sandbox(&self, handler: &str, took: Duration, fine: bool) {
        self.sandbox_seconds.with_label_values(&[handler]).observe(took.as_secs_f64());
        if !fine {
            self.sandbox_errors.with_label_values(&[handler]).inc();
        }
    }
}
