//! Metrics of in-place resizes under upstream's names.
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use kelson_meta::Quantity;
use kelson_metrics::{Families, HistogramVec, IntCounterVec, Registry};

use crate::pod::{self, Role};

/// Bounds in milliseconds for applying a resize.
const BOUNDS_MS: [f64; 14] = [10.0, 50.0, 100.0, 500.0, 1e3, 2e3, 5e3, 10e3, 20e3, 30e3, 60e3, 120e3, 300e3, 600e3];

/// Counters and histograms of resizes.
#[derive(Debug)]
pub struct ResizeMetrics {
    requested: IntCounterVec,
    milliseconds: HistogramVec,
    infeasible: IntCounterVec,
    accepted_later: IntCounterVec,
}

impl ResizeMetrics {
    /// Registers the metrics in `r`.
    pub fn new(r: &Registry) -> Self {
        Self {
            requested: r.counters(
                "kubelet_container_requested_resizes_total",
                "Requested changes of requests and limits, counted per container and resource.",
                &["resource", "requirement", "operation"],
            ),
            milliseconds: r.histograms(
                "kubelet_pod_resize_duration_milliseconds",
                "Duration of applying a resize to a pod and its containers in milliseconds.",
                &["success"],
                &BOUNDS_MS,
            ),
            infeasible: r.counters(
                "kubelet_pod_infeasible_resizes_total",
                "Infeasible resizes, which this node can never grant, by reason.",
                &["reason_detail"],
            ),
            accepted_later: r.counters(
                "kubelet_pod_deferred_accepted_resizes_total",
                "Deferred resizes that were granted later, by what triggered the retry.",
                &["retry_trigger"],
            ),
        }
    }

    /// Counts the changed resources of a pod's spec.
    pub fn requested(&self, before: &Pod, now: &Pod) {
        type Of = fn(&Container, &str) -> Option<Quantity>;
        let resizable = |m: &pod::Member<'_>| matches!(m.role, Role::App | Role::Sidecar);
        for old in pod::members(before).filter(resizable) {
            let Some(new) = pod::member(now, &old.container.name).filter(|m| m.role == old.role) else { continue };
            let amounts: [(&str, &str, Of); 4] = [
                ("memory", "requests", pod::request),
                ("memory", "limits", pod::limit),
                ("cpu", "requests", pod::request),
                ("cpu", "limits", pod::limit),
            ];
            for (resource, requirement, of) in amounts {
                let amount = |c: &Container| of(c, resource).unwrap_or_default();
                if let Some(operation) = operation(amount(&old.container), amount(&new.container)) {
                    self.requested.with_label_values(&[resource, requirement, operation]).inc();
                }
            }
        }
    }

    /// Records the application of a resize.
    pub fn carried_out(&self, success: bool, took: Duration) {
        let success = if success { "true" } else { "false" };
        self.milliseconds.with_label_values(&[success]).observe(took.as_secs_f64() * 1000.0);
    }

    /// Counts an infeasible resize; `detail` is the reason.
    pub fn infeasible(&self, detail: &str) {
        self.infeasible.with_label_values(&[detail]).inc();
    }

    /// Counts a deferred resize that was granted; `trigger` is what caused the retry.
    pub fn accepted_later(&self, trigger: &str) {
        self.accepted_later.with_label_values(&[trigger]).inc();
    }
}

fn operation(old: Quantity, new: Quantity) -> Option<&'static str> {
    match (old.is_zero(), new.is_zero()) {
        (false, true) => Some("remove"),
        (true, false) => Some("add"),
        _ if new < old => Some("decrease"),
        _ if new > old => Some("increase"),
        _ => None,
    }
}

/// Writes the numbers of pods with pending resizes by reason, and with resizes in progress.
pub fn resizes<'p>(families: &mut Families, pods: impl Iterator<Item = &'p Pod>) {
    let mut waiting = std::collections::BTreeMap::<String, u32>::new();
    let mut running = 0_u32;
    for c in pods.flat_map(|p| p.status.iter().flat_map(|s| s.conditions.iter().flatten())) {
        match c.type_.as_str() {
            "PodResizePending" => {
                *waiting.entry(c.reason.as_deref().unwrap_or_default().to_lowercase()).or_default() += 1;
            }
            "PodResizeInProgress" => running += 1,
            _ => {}
        }
    }
    let mut gauge = families.gauge("kubelet_pod_pending_resizes", "Pods with a pending resize by reason.");
    for (reason, count) in waiting {
        gauge.sample(&[("reason", &reason)], f64::from(count));
    }
    families
        .gauge("kubelet_pod_in_progress_resizes", "Pods with a resize in progress.")
        .sample(&[], f64::from(running));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::testing::check;
    use serde_json::{Value, json};

    fn pod(resources: Value, conditions: Value) -> Pod {
        serde_json::from_value(json!({
            "spec": {"initContainers": [{"name": "i", "resources": resources}],
                "containers": [{"name": "a", "resources": resources}, {"name": "b"}]},
            "status": {"conditions": conditions}}))
        .expect("a pod")
    }

    #[test]
    fn each_resource_of_each_container_counts_as_a_change() {
        let registry = Registry::new();
        let m = ResizeMetrics::new(&registry);
        let before = pod(json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}), json!([]));
        let now = pod(json!({"requests": {"cpu": "2", "memory": "512Mi"}, "limits": {"cpu": "4"}}), json!([]));
        m.requested(&before, &before);
        assert!(!registry.text().contains("requested_resizes_total{"), "nothing changed");
        m.requested(&before, &now);
        m.carried_out(true, Duration::from_millis(70));
        m.infeasible("guaranteed_pod_cpu_manager_static_policy");
        m.accepted_later("pods_removed");
        let of = |resource: &str, requirement: &str, operation: &str| {
            format!(
                "kubelet_container_requested_resizes_total{{operation=\"{operation}\",requirement=\"{requirement}\",resource=\"{resource}\"}} 1"
            )
        };
        check(
            &registry.text(),
            &[
                &of("cpu", "requests", "increase"),
                &of("memory", "requests", "decrease"),
                &of("memory", "limits", "remove"),
                &of("cpu", "limits", "add"),
                "kubelet_pod_resize_duration_milliseconds_bucket{success=\"true\",le=\"50\"} 0",
                "kubelet_pod_resize_duration_milliseconds_bucket{success=\"true\",le=\"100\"} 1",
                "kubelet_pod_infeasible_resizes_total{reason_detail=\"guaranteed_pod_cpu_manager_static_policy\"} 1",
                "kubelet_pod_deferred_accepted_resizes_total{retry_trigger=\"pods_removed\"} 1",
            ],
        );
    }

    #[test]
    fn pending_and_running_resizes_are_counted() {
        let of = |kind: &str, reason: &str| pod(json!({}), json!([{"type": kind, "status": "True", "reason": reason}]));
        let pods = [
            of("PodResizePending", "Deferred"),
            of("PodResizePending", "Deferred"),
            of("PodResizePending", "Infeasible"),
            of("PodResizeInProgress", ""),
            of("Ready", ""),
        ];
        let mut families = Families::default();
        resizes(&mut families, pods.iter());
        check(
            &families.text(),
            &[
                "kubelet_pod_pending_resizes{reason=\"deferred\"} 2",
                "kubelet_pod_pending_resizes{reason=\"infeasible\"} 1",
                "kubelet_pod_in_progress_resizes 1",
            ],
        );
    }
}
