//! The metrics of the autoscaler controller, with upstream's names (`pkg/controller/podautoscaler/monitor`).
use std::time::Duration;

use kelson_metrics::{HistogramVec, IntCounterVec, Registry, exponential_buckets};

/// The action of a sync or of one metric, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    ScaleUp,
    ScaleDown,
    None,
}

impl Action {
    /// Returns the action for the current and the desired number of pods.
    pub fn of(current: i32, desired: i32) -> Self {
        match desired.cmp(&current) {
            std::cmp::Ordering::Greater => Self::ScaleUp,
            std::cmp::Ordering::Less => Self::ScaleDown,
            std::cmp::Ordering::Equal => Self::None,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::ScaleUp => "scale_up",
            Self::ScaleDown => "scale_down",
            Self::None => "none",
        }
    }
}

/// The kind of an error, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorLabel {
    None,
    /// The spec is invalid.
    Spec,
    /// A request failed.
    Internal,
}

impl ErrorLabel {
    fn label(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Spec => "spec",
            Self::Internal => "internal",
        }
    }
}

/// The metrics of the controller.
pub struct AutoscalerCounts {
    reconciliations: IntCounterVec,
    reconciliation_seconds: HistogramVec,
    computations: IntCounterVec,
    computation_seconds: HistogramVec,
}

impl AutoscalerCounts {
    /// Registers the metrics; call this once per registry.
    pub fn new(registry: &Registry) -> Self {
        // 1 ms to 16 s, doubling.
        let bounds = exponential_buckets(0.001, 2.0, 15).unwrap_or_default();
        let name = |n: &str| format!("horizontal_pod_autoscaler_controller_{n}");
        let (look, metric) = (["action", "error"], ["action", "error", "metric_type"]);
        let counters = |n: &str, help: &str, labels: &[&str]| registry.counters(&name(n), help, labels);
        let histograms = |n: &str, help: &str, labels: &[&str]| registry.histograms(&name(n), help, labels, &bounds);
        Self {
            reconciliations: counters(
                "reconciliations_total",
                "HorizontalPodAutoscaler syncs by action and error.",
                &look,
            ),
            reconciliation_seconds: histograms(
                "reconciliation_duration_seconds",
                "Duration in seconds of HorizontalPodAutoscaler syncs.",
                &look,
            ),
            computations: counters(
                "metric_computation_total",
                "Metric computations by metric type, action and error.",
                &metric,
            ),
            computation_seconds: histograms(
                "metric_computation_duration_seconds",
                "Duration in seconds of metric computations.",
                &metric,
            ),
        }
    }

    /// Counts a sync of an autoscaler.
    pub fn reconciled(&self, action: Action, fault: ErrorLabel, took: Duration) {
        let labels = [action.label(), fault.label()];
        self.reconciliations.with_label_values(&labels).inc();
        self.reconciliation_seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Counts the computation of a metric of this type.
    pub fn computed(&self, action: Action, fault: ErrorLabel, metric_type: &str, took: Duration) {
        let labels = [action.label(), fault.label(), metric_type];
        self.computations.with_label_values(&labels).inc();
        self.computation_seconds.with_label_values(&labels).observe(took.as_secs_f64());
    }
}
