//! Metrics of exclusive CPUs and memory.
use std::collections::BTreeMap;
use std::time::Duration;

use kelson_metrics::{Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

/// Bounds in milliseconds for the placement of a pod, doubling each time.
const PLACING_BOUNDS: [f64; 15] =
    [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];

/// Metrics under upstream's names.
#[derive(Debug)]
pub struct PlacementMetrics {
    cpu_asked: IntCounter,
    cpu_failed: IntCounter,
    shared_millicores: IntGauge,
    own_cpus: IntGauge,
    by_node: IntGaugeVec,
    aligned: IntCounterVec,
    not_aligned: IntCounterVec,
    memory_asked: IntCounter,
    memory_failed: IntCounter,
    requests: IntCounter,
    errors: IntCounter,
    took_millis: Histogram,
}

impl PlacementMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> Self {
        let boundary = ["scope", "boundary"];
        Self {
            cpu_asked: registry
                .counter("kubelet_cpu_manager_pinning_requests_total", "Requests for exclusive CPUs by containers."),
            cpu_failed: registry.counter(
                "kubelet_cpu_manager_pinning_errors_total",
                "Failed requests for exclusive CPUs by containers.",
            ),
            shared_millicores: registry
                .gauge("kubelet_cpu_manager_shared_pool_size_millicores", "Size of the shared CPU pool in millicores."),
            own_cpus: registry
                .gauge("kubelet_cpu_manager_exclusive_cpu_allocation_count", "Exclusive CPUs of containers."),
            by_node: registry.gauges(
                "kubelet_cpu_manager_allocation_per_numa",
                "Exclusive CPUs of containers by NUMA node.",
                &["numa_node"],
            ),
            aligned: registry.counters(
                "kubelet_container_aligned_compute_resources_count",
                "Containers and pods with resources aligned to a boundary, by scope and boundary.",
                &boundary,
            ),
            not_aligned: registry.counters(
                "kubelet_container_aligned_compute_resources_failure_count",
                "Containers and pods whose resources could not be aligned to a boundary, by scope and boundary.",
                &boundary,
            ),
            memory_asked: registry.counter(
                "kubelet_memory_manager_pinning_requests_total",
                "Requests for reserved memory by containers.",
            ),
            memory_failed: registry.counter(
                "kubelet_memory_manager_pinning_errors_total",
                "Failed requests for reserved memory by containers.",
            ),
            requests: registry.counter(
                "kubelet_topology_manager_admission_requests_total",
                "Pods for which the topology manager aligned resources.",
            ),
            errors: registry.counter(
                "kubelet_topology_manager_admission_errors_total",
                "Pods whose resources the topology manager could not align.",
            ),
            took_millis: registry.histogram(
                "kubelet_topology_manager_admission_duration_ms",
                "Duration of aligning a pod's resources in milliseconds.",
                &PLACING_BOUNDS,
            ),
        }
    }

    /// Counts a request for exclusive CPUs, and whether whole cores are required.
    pub fn cpus_asked(&self, by_core: bool, succeeded: bool) {
        self.cpu_asked.inc();
        if !succeeded {
            self.cpu_failed.inc();
        }
        if by_core {
            self.bounded("container", "physical_cpu", succeeded);
        }
    }

    /// Counts a request for reserved memory.
    pub fn memory_asked(&self, succeeded: bool) {
        self.memory_asked.inc();
        if !succeeded {
            self.memory_failed.inc();
        }
    }

    /// Counts whether resources of a container (or a pod, by scope) are within a boundary.
    pub fn bounded(&self, scope: &str, boundary: &str, succeeded: bool) {
        let counters = if succeeded { &self.aligned } else { &self.not_aligned };
        counters.with_label_values(&[scope, boundary]).inc();
    }

    /// Sets the size of the shared pool, and the exclusive CPUs by NUMA node.
    pub fn shared(&self, free: usize, by_node: &BTreeMap<u32, usize>) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.shared_millicores.set(number(free).saturating_mul(1000));
        self.own_cpus.set(number(by_node.values().sum()));
        for (node, count) in by_node {
            self.by_node.with_label_values(&[&node.to_string()]).set(number(*count));
        }
    }

    /// Records the placement of a pod.
    pub fn placed(&self, succeeded: bool, took: Duration) {
        self.requests.inc();
        if !succeeded {
            self.errors.inc();
        }
        self.took_millis.observe(took.as_secs_f64() * 1000.0);
    }
}
