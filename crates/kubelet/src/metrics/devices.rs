//! What is counted of device plugins, and of those who ask what pods have.
use std::time::Duration;

use kelson_metrics::{HistogramVec, IntCounterVec, Registry};

use super::bounds::USUAL_BOUNDS;

/// The version of the API by which pods' resources are listed.
const API: &str = "v1";

/// Under upstream's names.
#[derive(Debug)]
pub struct DeviceMetrics {
    registrations: IntCounterVec,
    allocations: HistogramVec,
    asked: IntCounterVec,
    asked_by_call: [(&'static str, IntCounterVec, IntCounterVec); 3],
}

impl DeviceMetrics {
    /// Nothing counted yet.
    pub fn new(registry: &Registry) -> Self {
        let of_call = |call: &'static str| {
            let asked = registry.counters(
                &format!("kubelet_pod_resources_endpoint_requests_{call}"),
                "Calls of this name to the list of pods' resources.",
                &["server_api_version"],
            );
            let refused = registry.counters(
                &format!("kubelet_pod_resources_endpoint_errors_{call}"),
                "Calls of this name to the list of pods' resources that failed.",
                &["server_api_version"],
            );
            (call, asked, refused)
        };
        Self {
            registrations: registry.counters(
                "kubelet_device_plugin_registration_total",
                "Registrations of device plugins for resources that there may be.",
                &["resource_name"],
            ),
            allocations: registry.histograms(
                "kubelet_device_plugin_alloc_duration_seconds",
                "Seconds that device plugins took to say how a container gets its devices.",
                &["resource_name"],
                &USUAL_BOUNDS,
            ),
            asked: registry.counters(
                "kubelet_pod_resources_endpoint_requests_total",
                "Calls to the list of pods' resources.",
                &["server_api_version"],
            ),
            asked_by_call: ["list", "get", "get_allocatable"].map(of_call),
        }
    }

    /// A plugin wants to register. The name must be that of a resource: names are kept for ever.
    pub fn registered(&self, resource: &str) {
        self.registrations.with_label_values(&[resource]).inc();
    }

    /// A plugin was asked for devices and took so long.
    pub fn allocated(&self, resource: &str, took: Duration) {
        self.allocations.with_label_values(&[resource]).observe(took.as_secs_f64());
    }

    /// Somebody asks what pods have; `call` is `list`, `get` or `get_allocatable`.
    pub fn asked(&self, call: &str) {
        self.asked.with_label_values(&[API]).inc();
        self.of_call(call, |(_, asked, _)| asked.with_label_values(&[API]).inc());
    }

    /// Such a call failed.
    pub fn refused(&self, call: &str) {
        self.of_call(call, |(_, _, refused)| refused.with_label_values(&[API]).inc());
    }

    fn of_call(&self, call: &str, count: impl Fn(&(&'static str, IntCounterVec, IntCounterVec))) {
        self.asked_by_call.iter().filter(|(name, ..)| *name == call).for_each(count);
    }
}
