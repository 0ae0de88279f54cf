//! Metrics of resource claims and DRA drivers.
use std::collections::BTreeMap;
use std::time::Duration;

use kelson_metrics::{Families, HistogramVec, Registry};

/// Exponential bounds from 0.1 to 40 seconds.
fn bounds() -> Vec<f64> {
    (0..15).map(|n| 0.1 * 400_f64.powf(f64::from(n) / 14.0)).collect()
}

/// Metrics under upstream's names.
#[derive(Debug)]
pub struct ClaimMetrics {
    operations: HistogramVec,
    calls: HistogramVec,
}

impl ClaimMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        Self {
            operations: registry.histograms(
                "dra_operations_duration_seconds",
                "Duration of preparing or unpreparing all resource claims of a pod in seconds.",
                &["operation_name", "is_error"],
                &bounds(),
            ),
            calls: registry.histograms(
                "dra_grpc_operations_duration_seconds",
                "Duration of gRPC calls to DRA drivers in seconds by driver, method and code.",
                &["driver_name", "method_name", "grpc_status_code"],
                &bounds(),
            ),
        }
    }

    /// Records that all claims of a pod were prepared (`PrepareResources`) or unprepared (`UnprepareResources`), or that it failed.
    pub fn worked(&self, operation: &str, failed: bool, took: Duration) {
        let failed = if failed { "true" } else { "false" };
        self.operations.with_label_values(&[operation, failed]).observe(took.as_secs_f64());
    }

    /// Records a call to a registered driver and its gRPC code.
    pub fn called(&self, driver: &str, method: &str, code: &str, took: Duration) {
        self.calls.with_label_values(&[driver, method, code]).observe(took.as_secs_f64());
    }
}

/// Writes the number of prepared claims by driver; `<any>` is the total.
pub fn claims_in_use(families: &mut Families, claims: &BTreeMap<String, usize>) {
    let mut gauge = families.gauge("dra_resource_claims_in_use", "Prepared resource claims on this node by driver.");
    for (driver, count) in claims {
        gauge.sample(&[("driver_name", driver)], f64::from(u32::try_from(*count).unwrap_or(u32::MAX)));
    }
}
