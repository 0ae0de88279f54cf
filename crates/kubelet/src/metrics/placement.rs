//! What is counted of processors and memory that containers have to themselves.
use std::collections::BTreeMap;
use std::time::Duration;

use kelson_metrics::{Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

/// Upper bounds of the milliseconds that it takes to place a pod: each twice the one before.
const PLACING_BOUNDS: [f64; 15] =
    [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];

/// Under upstream's names.
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
    /// Nothing counted yet.
    pub fn new(registry: &Registry) -> Self {
        let boundary = ["scope", "boundary"];
        Self {
            cpu_asked: registry.counter(
                "kubelet_cpu_manager_pinning_requests_total",
                "Containers that were to get processors of their own.",
            ),
            cpu_failed: registry.counter(
                "kubelet_cpu_manager_pinning_errors_total",
                "Containers that were to get processors of their own and did not.",
            ),
            shared_millicores: registry.gauge(
                "kubelet_cpu_manager_shared_pool_size_millicores",
                "Thousandths of the processors that those share who have none of their own.",
            ),
            own_cpus: registry.gauge(
                "kubelet_cpu_manager_exclusive_cpu_allocation_count",
                "Processors that containers have to themselves.",
            ),
            by_node: registry.gauges(
                "kubelet_cpu_manager_allocation_per_numa",
                "Processors that containers have to themselves, by part of the machine.",
                &["numa_node"],
            ),
            aligned: registry.counters(
                "kubelet_container_aligned_compute_resources_count",
                "Containers and pods whose resources are within one such boundary.",
                &boundary,
            ),
            not_aligned: registry.counters(
                "kubelet_container_aligned_compute_resources_failure_count",
                "Containers and pods whose resources could not be within one such boundary.",
                &boundary,
            ),
            memory_asked: registry.counter(
                "kubelet_memory_manager_pinning_requests_total",
                "Containers that were to get memory promised.",
            ),
            memory_failed: registry.counter(
                "kubelet_memory_manager_pinning_errors_total",
                "Containers that were to get memory promised and did not.",
            ),
            requests: registry.counter(
                "kubelet_topology_manager_admission_requests_total",
                "Pods whose resources were to be placed.",
            ),
            errors: registry.counter(
                "kubelet_topology_manager_admission_errors_total",
                "Pods whose resources could not be placed.",
            ),
            took_millis: registry.histogram(
                "kubelet_topology_manager_admission_duration_ms",
                "Milliseconds that it took to place the resources of a pod.",
                &PLACING_BOUNDS,
            ),
        }
    }

    /// A container was to get processors of its own, by whole cores or not, and did or did not.
    pub fn cpus_asked(&self, by_core: bool, succeeded: bool) {
        self.cpu_asked.inc();
        if !succeeded {
            self.cpu_failed.inc();
        }
        if by_core {
            self.bounded("container", "physical_cpu", succeeded);
        }
    }

    /// A container was to get memory promised, and did or did not.
    pub fn memory_asked(&self, succeeded: bool) {
        self.memory_asked.inc();
        if !succeeded {
            self.memory_failed.inc();
        }
    }

    /// What a container (or a pod, by scope) got lies within a boundary, or could not.
    pub fn bounded(&self, scope: &str, boundary: &str, succeeded: bool) {
        let counters = if succeeded { &self.aligned } else { &self.not_aligned };
        counters.with_label_values(&[scope, boundary]).inc();
    }

    /// How many processors are free for all, and how many are taken in each part of the machine.
    pub fn shared(&self, free: usize, by_node: &BTreeMap<u32, usize>) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.shared_millicores.set(number(free).saturating_mul(1000));
        self.own_cpus.set(number(by_node.values().sum()));
        for (node, count) in by_node {
            self.by_node.with_label_values(&[&node.to_string()]).set(number(*count));
        }
    }

    /// A pod was placed, or not, and that took so long.
    pub fn placed(&self, succeeded: bool, took: Duration) {
        self.requests.inc();
        if !succeeded {
            self.errors.inc();
        }
        self.took_millis.observe(took.as_secs_f64() * 1000.0);
    }
}
