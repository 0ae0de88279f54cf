//! The metrics of enforcement: syncs, deleted connections, and the decisions of each policy.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kelson_meta::ObjectKey;
use kelson_metrics::{Histogram, IntCounter, Registry, exponential_buckets};
use parking_lot::Mutex;

use crate::policy::{Direction, Policy};
use crate::render;

/// The metrics of a node's enforcement.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    sync_seconds: Histogram,
    sync_failures: IntCounter,
    repairs: IntCounter,
    connections_ended: IntCounter,
    decisions: Arc<Mutex<Decisions>>,
}

/// New connections by policy, direction and decision, summed over all instances of the kernel's counters.
#[derive(Debug, Default)]
struct Decisions {
    totals: BTreeMap<(ObjectKey, Direction, bool), u64>,
    /// The last value of each counter of the kernel.
    readings: HashMap<String, u64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let bounds = exponential_buckets(0.001, 2.0, 15).unwrap_or_default();
        let decisions = Arc::<Mutex<Decisions>>::default();
        let shown = Arc::clone(&decisions);
        registry.on_scrape(move |families| {
            let help = "New connections allowed by a network policy, or denied by it and the pod's other policies, by policy and direction.";
            let mut family = families.counter("kelson_network_policy_connections_total", help);
            for ((policy, direction, allowed), count) in &shown.lock().totals {
                let decision = if *allowed { "allowed" } else { "denied" };
                let labels = [
                    ("namespace", policy.namespace.as_str()),
                    ("policy", policy.name.as_str()),
                    ("direction", direction.as_str()),
                    ("decision", decision),
                ];
                // Packet counts are far below the largest integer that a float represents exactly.
                family.sample(&labels, *count as f64);
            }
        });
        Self {
            sync_seconds: registry.histogram(
                "kelson_network_policy_sync_duration_seconds",
                "Duration in seconds of updates of the kernel's rules.",
                &bounds,
            ),
            sync_failures: registry
                .counter("kelson_network_policy_sync_failures_total", "Transactions rejected by the kernel."),
            repairs: registry.counter(
                "kelson_network_policy_repairs_total",
                "Restorations of the kernel's rules after changes by other programs.",
            ),
            connections_ended: registry.counter(
                "kelson_network_policy_connections_ended_total",
                "Established connections closed because no policy allows them any longer.",
            ),
            decisions,
            registry,
        }
    }
}

impl Metrics {
    /// Returns the registry to serve.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(crate) fn synced(&self, took: Duration) {
        self.sync_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn failed(&self) {
        self.sync_failures.inc();
    }

    pub(crate) fn repaired(&self) {
        self.repairs.inc();
    }

    pub(crate) fn ended(&self, connections: usize) {
        self.connections_ended.inc_by(u64::try_from(connections).unwrap_or(u64::MAX));
    }

    /// Adds the values of the kernel's counters, by name. A value below the last one is from a counter that was created
    /// again. Removed policies are dropped.
    pub(crate) fn read(&self, policies: &[Arc<Policy>], counters: &[HashMap<String, u64>]) {
        let mut decisions = self.decisions.lock();
        let mut totals = BTreeMap::new();
        let mut readings = HashMap::new();
        for policy in policies {
            for direction in Direction::ALL.into_iter().filter(|d| policy.rules(*d).is_some()) {
                for allowed in [true, false] {
                    let key = (policy.key.clone(), direction, allowed);
                    let mut total = decisions.totals.get(&key).copied().unwrap_or_default();
                    for (table, found) in counters.iter().enumerate() {
                        let name = render::counter(&policy.key, direction, allowed);
                        let now = found.get(&name).copied().unwrap_or_default();
                        let reading = format!("{table}/{name}");
                        let last = decisions.readings.get(&reading).copied().unwrap_or_default();
                        total += if now >= last { now - last } else { now };
                        readings.insert(reading, now);
                    }
                    totals.insert(key, total);
                }
            }
        }
        *decisions = Decisions { totals, readings };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_outlive_counters_that_are_made_again() {
        let metrics = Metrics::default();
        let object = serde_json::json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"podSelector": {}}});
        let policies = [Arc::new(Policy::new(&serde_json::from_value(object).expect("decodes")))];
        let name = render::counter(&policies[0].key, Direction::Ingress, false);
        for reading in [3, 5, 2] {
            metrics.read(&policies, &[HashMap::from([(name.clone(), reading)])]);
        }
        let text = metrics.registry().text();
        let line = "kelson_network_policy_connections_total{namespace=\"n\",policy=\"p\",direction=\"Ingress\",\
            decision=\"denied\"} 7\n";
        assert!(text.contains(line), "{text}");
        metrics.read(&[], &[]);
        assert!(!metrics.registry().text().contains("policy=\"p\""));
    }
}
