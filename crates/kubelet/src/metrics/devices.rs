//! Metrics of device plugins and of the PodResources API.
use std::time::Duration;

use kelson_metrics::{HistogramVec, IntCounterVec, Registry};

use super::bounds::USUAL_BOUNDS;

/// Version of the PodResources API.
const API: &str = "v1";

/// Metrics under upstream's names.
#[derive(Debug)]
pub struct DeviceMetrics {
    registrations: IntCounterVec,
    allocations: HistogramVec,
    asked: IntCounterVec,
    asked_by_call: [(&'static str, IntCounterVec, IntCounterVec); 3],
}

impl DeviceMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        let of_call = |call: &'static str| {
            let asked = registry.counters(
                &format!("kubelet_pod_resources_endpoint_requests_{call}"),
                "Calls of this method of the PodResources API.",
                &["server_api_version"],
            );
            let refused = registry.counters(
                &format!("kubelet_pod_resources_endpoint_errors_{call}"),
                "Failed calls of this method of the PodResources API.",
                &["server_api_version"],
            );
            (call, asked, refused)
        };
        Self {
            registrations: registry.counters(
                "kubelet_device_plugin_registration_total",
                "Registrations of device plugins by resource.",
                &["resource_name"],
            ),
            allocations: registry.histograms(
                "kubelet_device_plugin_alloc_duration_seconds",
                "Duration of Allocate calls to device plugins in seconds by resource.",
                &["resource_name"],
                &USUAL_BOUNDS,
            ),
            asked: registry.counters(
                "kubelet_pod_resources_endpoint_requests_total",
                "Calls of the PodResources API.",
                &["server_api_version"],
            ),
            asked_by_call: ["list", "get", "get_allocatable"].map(of_call),
        }
    }

    /// Counts a registration. The resource name must be valid, because time series are never removed.
    pub fn registered(&self, resource: &str) {
        self.registrations.with_label_values(&[resource]).inc();
    }

    /// Records an `Allocate` call.
    pub fn allocated(&self, resource: &str, took: Duration) {
        self.allocations.with_label_values(&[resource]).observe(took.as_secs_f64());
    }

    /// Counts a call of the PodResources API; `call` is `list`, `get` or `get_allocatable`.
    pub fn asked(&self, call: &str) {
        self.asked.with_label_values(&[API]).inc();
        self.of_call(call, |(_, asked, _)| asked.with_label_values(&[API]).inc());
    }

    /// Counts a failed call.
    pub fn refused(&self, call: &str) {
        self.of_call(call, |(_, _, refused)| refused.with_label_values(&[API]).inc());
    }

    fn of_call(&self, call: &str, count: impl Fn(&(&'static str, IntCounterVec, IntCounterVec))) {
        self.asked_by_call.iter().filter(|(name, ..)| *name == call).for_each(count);
    }
}
