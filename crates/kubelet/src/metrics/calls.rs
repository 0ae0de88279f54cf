//! Calls to the runtime.
use std::time::Duration;

use kelson_metrics::{HistogramVec, IntCounterVec, Registry, exponential_buckets};

use super::bounds::USUAL_BOUNDS;

/// What is counted of calls to the runtime.
#[derive(Debug)]
pub struct Calls {
    all: IntCounterVec,
    seconds: HistogramVec,
    errors: IntCounterVec,
    sandbox_seconds: HistogramVec,
    sandbox_errors: IntCounterVec,
}

impl Calls {
    /// Nothing counted yet; shown by `r`, once.
    pub fn new(r: &Registry) -> Self {
        let calls = exponential_buckets(0.005, 2.5, 14).unwrap_or_default();
        Self {
            all: r.counters("kubelet_runtime_operations_total", "Calls to the runtime.", &["operation_type"]),
            seconds: r.histograms(
                "kubelet_runtime_operations_duration_seconds",
                "Seconds that calls to the runtime took.",
                &["operation_type"],
                &calls,
            ),
            errors: r.counters(
                "kubelet_runtime_operations_errors_total",
                "Calls to the runtime that failed.",
                &["operation_type"],
            ),
            sandbox_seconds: r.histograms(
                "kubelet_run_podsandbox_duration_seconds",
                "Seconds that the runtime took for the sandboxes of pods.",
                &["runtime_handler"],
                &USUAL_BOUNDS,
            ),
            sandbox_errors: r.counters(
                "kubelet_run_podsandbox_errors_total",
                "Sandboxes of pods that the runtime did not make.",
                &["runtime_handler"],
            ),
        }
    }

    /// A call is over.
    pub fn ended(&self, operation: &str, took: Duration, fine: bool) {
        self.all.with_label_values(&[operation]).inc();
        self.seconds.with_label_values(&[operation]).observe(took.as_secs_f64());
        if !fine {
            self.errors.with_label_values(&[operation]).inc();
        }
    }

    /// A sandbox was made, or could not be.
    pub fn sandbox(&self, handler: &str, took: Duration, fine: bool) {
        self.sandbox_seconds.with_label_values(&[handler]).observe(took.as_secs_f64());
        if !fine {
            self.sandbox_errors.with_label_values(&[handler]).inc();
        }
    }
}
