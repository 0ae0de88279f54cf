//! The metrics of the endpoint slice controller, with upstream's names (`staging/src/k8s.io/endpointslice/metrics`).
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kelson_client::Object as _;
use kelson_meta::ObjectKey;
use kelson_metrics::{Histogram, Registry, exponential_buckets};
use parking_lot::Mutex;

use super::core::{Group, SlicePlan};
use crate::views::{Endpoint, ServiceView};

/// The desired sizes of one service.
pub struct Sizes {
    endpoints: usize,
    /// The number of slices with an optimal distribution of endpoints.
    least_slices: usize,
}

impl Sizes {
    /// Returns the sizes for these endpoints with at most `most` endpoints per slice.
    pub fn of(desired: &BTreeMap<Group, Vec<Endpoint>>, most: usize) -> Self {
        let least: usize = desired.values().map(|endpoints| endpoints.len().div_ceil(most)).sum();
        // There is always one.
        Self { endpoints: desired.values().map(Vec::len).sum(), least_slices: least.max(1) }
    }
}

/// The sizes of one service.
struct OfService {
    sizes: Sizes,
    slices: usize,
    traffic_distribution: Option<String>,
}

/// The metrics of the controller.
pub struct SliceMetrics {
    added: Histogram,
    removed: Histogram,
    services: Arc<Mutex<HashMap<ObjectKey, OfService>>>,
}

impl SliceMetrics {
    /// Registers the metrics; call this once per registry.
    pub fn new(registry: &Registry) -> Self {
        let bounds = exponential_buckets(2.0, 2.0, 15).unwrap_or_default();
        let name = |n: &str| format!("endpoint_slice_controller_{n}");
        let services: Arc<Mutex<HashMap<ObjectKey, OfService>>> = Arc::default();
        let shown = Arc::clone(&services);
        registry.on_scrape(move |families| {
            let services = shown.lock();
            let mut gauge = |n: &str, help: &str, value: fn(&OfService) -> usize| {
                let sum: usize = services.values().map(value).sum();
                families.gauge(&name(n), help).sample(&[], sum as f64);
            };
            gauge("endpoints_desired", "Number of desired endpoints.", |s| s.sizes.endpoints);
            gauge("num_endpoint_slices", "Number of EndpointSlices.", |s| s.slices);
            gauge(
                "desired_endpoint_slices",
                "Number of EndpointSlices with an optimal distribution of endpoints.",
                |s| s.sizes.least_slices,
            );
            let mut by_distribution: BTreeMap<&str, usize> = BTreeMap::new();
            for field in services.values().filter_map(|s| s.traffic_distribution.as_deref()) {
                *by_distribution.entry(field).or_default() += 1;
            }
            let help = "Number of services by trafficDistribution.";
            let mut family = families.gauge(&name("services_count_by_traffic_distribution"), help);
            for (field, n) in by_distribution {
                family.sample(&[("traffic_distribution", field)], n as f64);
            }
        });
        Self {
            added: registry.histogram(&name("endpoints_added_per_sync"), "Endpoints added per sync.", &bounds),
            removed: registry.histogram(&name("endpoints_removed_per_sync"), "Endpoints removed per sync.", &bounds),
            services,
        }
    }

    /// Counts one sync of a service with `existing` slices.
    pub fn synced(&self, service: &ServiceView, sizes: Sizes, plan: &SlicePlan, existing: usize) {
        self.added.observe(plan.added as f64);
        self.removed.observe(plan.removed as f64);
        let of_service = OfService {
            sizes,
            slices: (existing + plan.create.len()).saturating_sub(plan.delete.len()),
            traffic_distribution: service.spec.traffic_distribution.clone(),
        };
        self.services.lock().insert(service.key(), of_service);
    }

    /// Removes a deleted service.
    pub fn forget(&self, service: &ObjectKey) {
        self.services.lock().remove(service);
    }
}
