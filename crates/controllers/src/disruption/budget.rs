//! The status of a disruption budget from its pods. No I/O here (upstream `pkg/controller/disruption`).
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::views::{BudgetSpecView, BudgetStatus, BudgetView, IntOrString, PodView, StandardCondition, put_condition};

/// The time in which the deletion of a pod must be observed after its eviction was allowed.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_secs(120);
/// The time after which a `DisruptionTarget` condition without a deletion is removed.
pub const STALE_TARGET_TIMEOUT: Duration = Duration::from_secs(120);
const ALLOWED: &str = "DisruptionAllowed";

/// Whether a budget depends on the scale of the pods' controllers instead of the number of pods.
pub fn needs_scale(spec: &BudgetSpecView) -> bool {
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(_), _) => true,
        (None, Some(IntOrString::Text(_))) => true,
        (None, Some(IntOrString::Int(_)) | None) => false,
    }
}

/// Returns the expected number of pods and the number that must be healthy. `scale` is the total scale of the pods'
/// controllers.
pub fn expected(spec: &BudgetSpecView, pods: usize, scale: i32) -> (i32, i32) {
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => (scale, scale.saturating_sub(most.scaled(scale, true)).max(0)),
        (None, Some(IntOrString::Int(n))) => (i32::try_from(pods).unwrap_or(i32::MAX), *n),
        (None, Some(part)) => (scale, part.scaled(scale, true)),
        (None, None) => (0, 0),
    }
}

/// Evictions that were allowed and are not yet observed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Disrupted {
    /// The time of the eviction by pod.
    pub pods: BTreeMap<String, String>,
    /// Pods that were not deleted in time, which count again.
    pub not_deleted: Vec<String>,
    /// The time until the next eviction expires.
    pub recheck: Option<Duration>,
}

/// Returns the evictions in the status that still count.
pub fn disrupted(status: &BudgetStatus, pods: &[Arc<PodView>], now: Timestamp) -> Disrupted {
    let mut d = Disrupted::default();
    for pod in pods.iter().filter(|p| !p.metadata.is_deleting()) {
        let name = &pod.metadata.name;
        let Some(since) = status.disrupted_pods.get(name) else { continue };
        let until = since.parse::<Timestamp>().ok().and_then(|t| t.checked_add(DELETION_TIMEOUT).ok());
        match until.filter(|until| *until >= now) {
            None => d.not_deleted.push(name.clone()),
            Some(until) => {
                // Slightly later, so that the eviction has expired by then.
                let wait = Duration::try_from(until.duration_since(now)).unwrap_or_default() + Duration::from_secs(1);
                d.recheck = Some(d.recheck.map_or(wait, |r| r.min(wait)));
                d.pods.insert(name.clone(), since.clone());
            }
        }
    }
    d
}

/// The status of a budget over these pods.
pub fn status(budget: &BudgetView, pods: &[Arc<PodView>], d: &Disrupted, scale: i32, now: Timestamp) -> BudgetStatus {
    let healthy =
        |p: &&Arc<PodView>| !p.metadata.is_deleting() && !d.pods.contains_key(&p.metadata.name) && p.is_ready();
    let current = i32::try_from(pods.iter().filter(healthy).count()).unwrap_or(i32::MAX);
    let (expected, desired) = expected(&budget.spec, pods.len(), scale);
    // A budget without expected pods allows no eviction, as its first pods may not be in the cache yet.
    let allowed = if expected <= 0 { 0 } else { current.saturating_sub(desired).max(0) };
    let mut status = BudgetStatus {
        observed_generation: budget.metadata.generation,
        disrupted_pods: d.pods.clone(),
        disruptions_allowed: allowed,
        current_healthy: current,
        desired_healthy: desired,
        expected_pods: expected,
        conditions: budget.status.conditions.clone(),
    };
    let (holds, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    put(&mut status, holds, reason, String::new(), now);
    status
}

/// Returns the status of a budget whose pods cannot be counted, which allows no eviction.
pub fn failed(budget: &BudgetView, why: String, now: Timestamp) -> BudgetStatus {
    let mut status = budget.status.clone();
    status.disruptions_allowed = 0;
    put(&mut status, "False", "SyncFailed", why, now);
    status
}

fn put(status: &mut BudgetStatus, holds: &str, reason: &str, message: String, now: Timestamp) {
    let new = StandardCondition {
        r#type: ALLOWED.to_owned(),
        status: holds.to_owned(),
        observed_generation: status.observed_generation,
        reason: reason.to_owned(),
        message,
        ..StandardCondition::default()
    };
    put_condition(&mut status.conditions, new, now);
}

/// Returns the time until a pod's `DisruptionTarget` condition is stale. A condition that the kubelet set never is, as
/// the termination of a pod may take any time.
pub fn until_stale(pod: &PodView, now: Timestamp) -> Option<Duration> {
    let says = pod.condition("DisruptionTarget").filter(|c| c.status == "True")?;
    if pod.metadata.is_deleting() || pod.is_terminal() || says.reason.as_deref() == Some("TerminationByKubelet") {
        return None;
    }
    let passed = Duration::try_from(now.duration_since(says.last_transition_time?)).unwrap_or_default();
    Some(STALE_TARGET_TIMEOUT.saturating_sub(passed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    fn pod(name: &str, ready: bool, going: bool) -> Arc<PodView> {
        let mut p = json!({"metadata": {"name": name}, "status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}});
        if going {
            p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Arc::new(serde_json::from_value(p).unwrap())
    }

    fn budget(spec: &Value, status: &Value) -> BudgetView {
        let b = json!({"metadata": {"generation": 3}, "spec": spec, "status": status});
        serde_json::from_value(b).unwrap()
    }

    #[test]
    fn numbers() {
        let pods = [pod("a", true, false), pod("b", true, false), pod("c", false, false), pod("d", true, true)];
        for (spec, scale, want) in [
            (json!({"minAvailable": 1}), 0, (4, 1, 2, 1)),
            (json!({"minAvailable": 2}), 0, (4, 2, 2, 0)),
            (json!({"minAvailable": 5}), 0, (4, 5, 2, 0)),
            (json!({"minAvailable": "50%"}), 3, (3, 2, 2, 0)),
            (json!({"minAvailable": "10%"}), 3, (3, 1, 2, 1)),
            (json!({"maxUnavailable": 1}), 3, (3, 2, 2, 0)),
            (json!({"maxUnavailable": "60%"}), 3, (3, 1, 2, 1)),
            (json!({"maxUnavailable": 9}), 3, (3, 0, 2, 2)),
            (json!({"maxUnavailable": 1}), 0, (0, 0, 2, 0)),
            (json!({}), 0, (0, 0, 2, 0)),
        ] {
            let s = status(&budget(&spec, &json!({})), &pods, &Disrupted::default(), scale, now());
            let got = (s.expected_pods, s.desired_healthy, s.current_healthy, s.disruptions_allowed);
            assert_eq!(got, want, "{spec}");
            let c = &s.conditions[0];
            assert_eq!((c.status == "True", c.observed_generation), (want.3 > 0, 3), "{spec}");
        }
    }

    #[test]
    fn allowed_evictions_count_until_their_time_is_over() {
        let pods = [pod("a", true, false), pod("b", true, false), pod("c", true, false), pod("d", true, true)];
        let noted = json!({"a": "2026-01-01T00:59:30Z", "b": "2026-01-01T00:57:59Z", "d": "2026-01-01T00:59:30Z",
            "gone": "2026-01-01T00:59:30Z"});
        let b = budget(&json!({"minAvailable": 1}), &json!({"disruptedPods": noted}));
        let d = disrupted(&b.status, &pods, now());
        assert_eq!(d.pods.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!((d.not_deleted.as_slice(), d.recheck), (&["b".to_owned()][..], Some(Duration::from_secs(91))));
        assert_eq!(status(&b, &pods, &d, 0, now()).current_healthy, 2);
    }

    #[test]
    fn failure_allows_nothing_and_says_why() {
        let b = budget(&json!({"minAvailable": "50%"}), &json!({"disruptionsAllowed": 2, "currentHealthy": 4}));
        let s = failed(&b, "found no controllers for pod \"x\"".to_owned(), now());
        let c = &s.conditions[0];
        assert_eq!((s.disruptions_allowed, s.current_healthy, c.reason.as_str()), (0, 4, "SyncFailed"));
        assert_eq!(failed(&BudgetView { status: s.clone(), ..b }, c.message.clone(), now()), s, "said once");
    }

    #[test]
    fn stale_targets() {
        let with = |status: &str, reason: &str, phase: &str| {
            let c = json!({"type": "DisruptionTarget", "status": status, "reason": reason,
                "lastTransitionTime": "2026-01-01T00:59:00Z"});
            serde_json::from_value::<PodView>(json!({"status": {"phase": phase, "conditions": [c]}})).unwrap()
        };
        let rows = [
            (with("True", "EvictionByEvictionAPI", "Running"), Some(60)),
            (with("False", "EvictionByEvictionAPI", "Running"), None),
            (with("True", "TerminationByKubelet", "Running"), None),
            (with("True", "EvictionByEvictionAPI", "Failed"), None),
        ];
        for (pod, want) in rows {
            assert_eq!(until_stale(&pod, now()), want.map(Duration::from_secs), "{pod:?}");
        }
    }
}
