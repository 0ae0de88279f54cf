//! The metrics of zones and of evictions.
use kelson_metrics::{GaugeVec, IntCounterVec, Registry};

/// The metrics of zones, with upstream's names.
pub struct ZoneMetrics {
    pub health: GaugeVec,
    pub size: GaugeVec,
    pub unhealthy: GaugeVec,
    pub evictions: IntCounterVec,
}

impl ZoneMetrics {
    /// Registers the metrics; call this once per registry.
    pub fn new(registry: &Registry) -> Self {
        let gauges = |name: &str, help: &str| registry.float_gauges(&format!("node_collector_{name}"), help, &["zone"]);
        Self {
            health: gauges("zone_health", "Percentage of ready nodes per zone."),
            size: gauges("zone_size", "Number of nodes per zone."),
            unhealthy: gauges("unhealthy_nodes_in_zone", "Number of nodes per zone that are not ready."),
            evictions: registry.counters(
                "node_collector_evictions_total",
                "Nodes whose pods were evicted, per zone.",
                &["zone"],
            ),
        }
    }
}
