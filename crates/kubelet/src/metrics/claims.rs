//! What is counted of claims' devices and their drivers.
use std::collections::BTreeMap;
use std::time::Duration;

use kelson_metrics::{Families, HistogramVec, Registry};

/// Upper bounds of seconds from 0.1 to 40, each the same multiple of the one before.
fn bounds() -> Vec<f64> {
    (0..15).map(|n| 0.1 * 400_f64.powf(f64::from(n) / 14.0)).collect()
}

/// Under upstream's names.
#[derive(Debug)]
pub struct ClaimMetrics {
    operations: HistogramVec,
    calls: HistogramVec,
}

impl ClaimMetrics {
    /// Nothing counted yet.
    pub fn new(registry: &Registry) -> Self {
        Self {
            operations: registry.histograms(
                "dra_operations_duration_seconds",
                "Seconds that it took to make all claims of a pod ready, or to take that back.",
                &["operation_name", "is_error"],
                &bounds(),
            ),
            calls: registry.histograms(
                "dra_grpc_operations_duration_seconds",
                "Seconds that drivers of claims' devices took to answer.",
                &["driver_name", "method_name", "grpc_status_code"],
                &bounds(),
            ),
        }
    }

    /// All claims of a pod were made ready (`PrepareResources`) or no longer are (`UnprepareResources`), or that failed.
    pub fn worked(&self, operation: &str, failed: bool, took: Duration) {
        let failed = if failed { "true" } else { "false" };
        self.operations.with_label_values(&[operation, failed]).observe(took.as_secs_f64());
    }

    /// A driver that has registered answered a call with this code.
    pub fn called(&self, driver: &str, method: &str, code: &str, took: Duration) {
        self.calls.with_label_values(&[driver, method, code]).observe(took.as_secs_f64());
    }
}

/// How many claims are ready on this node, by driver; `<any>` is a driver's name that stands for all.
pub fn claims_in_use(families: &mut Families, claims: &BTreeMap<String, usize>) {
    let mut gauge = families.gauge("dra_resource_claims_in_use", "Claims that are ready on this node, by driver.");
    for (driver, count) in claims {
        gauge.sample(&[("driver_name", driver)], f64::from(u32::try_from(*count).unwrap_or(u32::MAX)));
    }
}
