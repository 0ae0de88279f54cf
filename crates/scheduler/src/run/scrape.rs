//! Metrics that are computed when they are scraped: waiting pods, events that queued them, plugins that rejected them,
//! and the size of the cache.
use kelson_meta::gates::FeatureGates;
use kelson_metrics::Families;

use crate::core::Core;

/// Adds a metric for each feature, which is 1 when it is enabled.
pub(super) fn features(families: &mut Families, gates: &FeatureGates) {
    let mut family =
        families.gauge("kubernetes_feature_enabled", "1 if the feature gate is enabled, by name and stage.");
    for (name, stage, on) in gates.all() {
        family.sample(&[("name", name), ("stage", stage.label())], f64::from(u8::from(on)));
    }
}

/// Adds the metrics of the current state.
pub(super) fn scraped(families: &mut Families, core: &Core) {
    let depth = core.queue.depth();
    let mut pods = families.gauge("scheduler_pending_pods", "Number of pending pods by queue.");
    for (queue, n) in [
        ("active", depth.active),
        ("backoff", depth.backoff),
        ("gated", depth.gated),
        ("unschedulable", depth.unschedulable),
    ] {
        pods.sample(&[("queue", queue)], n as f64);
    }
    let mut incoming =
        families.counter("scheduler_queue_incoming_pods_total", "Pods added to scheduling queues, by event and queue.");
    for (queue, event, n) in core.queue.incoming() {
        incoming.sample(&[("queue", queue), ("event", event)], n as f64);
    }
    let mut refused =
        families.gauge("scheduler_unschedulable_pods", "Number of unschedulable pods by plugin and profile.");
    for ((plugin, profile), n) in core.refused() {
        refused.sample(&[("plugin", plugin), ("profile", &profile)], n as f64);
    }
    let (nodes, pods, assumed) = core.cluster.sizes();
    let mut cache = families.gauge("scheduler_cache_size", "Number of nodes, pods and assumed pods in the cache.");
    for (kind, n) in [("nodes", nodes), ("pods", pods), ("assumed_pods", assumed)] {
        cache.sample(&[("type", kind)], n as f64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::core::Step;
    use crate::tests::{asks, core, node};

    #[test]
    fn what_is_counted_while_pods_are_placed() {
        let mut c = core(&[node("n", json!({}))], &[]);
        let now = Instant::now();
        let registry = c.metrics.registry().clone();
        c.put_pod(asks("p", "3", json!({})), now);
        let Step::Bind(p) = c.step(now) else { panic!("pod was not bound") };
        c.bound(&p, now + Duration::from_secs(3));
        c.put_pod(asks("q", "3", json!({})), now);
        assert!(matches!(c.step(now), Step::Report(_)));
        c.metrics.made_ready("default-scheduler", &["d".into()], "timeout", Duration::from_secs(1));
        let core = Arc::new(Mutex::new(c));
        registry.on_scrape(move |families| {
            scraped(families, &core.lock());
            features(families, &FeatureGates::default());
        });
        let described = registry.described();
        let facts = include_str!("../../../../facts/component-metrics.txt");
        for line in facts.lines().filter_map(|l| l.strip_prefix("kube-scheduler ")) {
            let words: Vec<&str> = line.split(' ').collect();
            let labels: BTreeSet<String> = words[2].split(',').filter(|l| *l != "-").map(str::to_owned).collect();
            assert_eq!(described.get(words[1]), Some(&labels), "{line}");
        }
        let text = registry.text();
        for line in [
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"} 1",
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"unschedulable\"} 1",
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"error\"} 0",
            "scheduler_scheduling_attempt_duration_seconds_count{profile=\"default-scheduler\",result=\"scheduled\"} 1",
            "scheduler_scheduling_algorithm_duration_seconds_count 2",
            "scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts=\"1\",le=\"2.56\"} 0",
            "scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts=\"1\",le=\"5.12\"} 1",
            "scheduler_pod_scheduling_attempts_bucket{le=\"1\"} 1",
            "scheduler_preemption_attempts_total 1",
            "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"Filter\",profile=\"default-scheduler\",status=\"Unschedulable\"} 1",
            "scheduler_plugin_evaluation_total{extension_point=\"Filter\",plugin=\"NodeResourcesFit\",profile=\"default-scheduler\"} 2",
            "scheduler_dra_bindingconditions_allocations_total{driver=\"d\",profile=\"default-scheduler\",status=\"timeout\"} 1",
            "scheduler_goroutines{operation=\"binding\"} 0",
            "scheduler_pending_pods{queue=\"unschedulable\"} 1",
            "scheduler_pending_pods{queue=\"gated\"} 0",
            "scheduler_queue_incoming_pods_total{queue=\"active\",event=\"UnschedulablePodAdd\"} 2",
            "scheduler_queue_incoming_pods_total{queue=\"unschedulable\",event=\"ScheduleAttemptFailure\"} 1",
            "scheduler_unschedulable_pods{plugin=\"NodeResourcesFit\",profile=\"default-scheduler\"} 1",
            "scheduler_cache_size{type=\"nodes\"} 1",
            "scheduler_cache_size{type=\"assumed_pods\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
