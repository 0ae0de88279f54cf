//! A deployment's status and the conditions `kubectl rollout status` waits for: pure. Upstream
//! `pkg/controller/deployment/progress.go`.
use std::time::Duration;

use jiff::Timestamp;
use kelson_meta::format_seconds;

use super::sizing::Ask;
use crate::views::condition::{self, Condition};
use crate::views::{DeploymentStatus, DeploymentView, ReplicaSetView};

/// Condition of the rollout.
pub const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";
/// Reason of a rollout that is done.
pub const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
/// Reason of a rollout that made no progress in time.
pub const TIMED_OUT: &str = "ProgressDeadlineExceeded";
/// Reason while paused.
pub const PAUSED: &str = "DeploymentPaused";

/// Whether the rollout has a deadline at all (`MaxInt32` means none).
pub fn has_deadline(d: &DeploymentView) -> bool {
    d.spec.progress_deadline_seconds.is_some_and(|s| s != i32::MAX)
}

/// The numbers, and condition Available; other conditions as they were.
pub fn calculate(
    d: &DeploymentView,
    sets: &[ReplicaSetView],
    new: Option<&ReplicaSetView>,
    now: Timestamp,
) -> DeploymentStatus {
    let sum = |f: fn(&ReplicaSetView) -> i32| sets.iter().map(f).sum::<i32>();
    let available = sum(|s| s.status.available_replicas);
    let wanted = sum(|s| s.spec.replicas.unwrap_or(1));
    let terminating: Option<i32> = sets.iter().map(|s| s.status.terminating_replicas).sum();
    let mut conditions = d.status.conditions.clone();
    let ask = Ask::of(d);
    let now = format_seconds(now);
    let (status, reason, message) = if available >= ask.replicas - ask.max_unavailable {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    condition::set(&mut conditions, Condition::new(AVAILABLE, status, reason, message, &now).updated_at(&now));
    DeploymentStatus {
        observed_generation: d.metadata.generation,
        replicas: sum(|s| s.status.replicas),
        updated_replicas: new.map_or(0, |s| s.status.replicas),
        ready_replicas: sum(|s| s.status.ready_replicas),
        available_replicas: available,
        unavailable_replicas: (wanted - available).max(0),
        terminating_replicas: terminating,
        collision_count: d.status.collision_count,
        conditions,
    }
}

/// Whether the rollout is done.
pub fn is_complete(d: &DeploymentView, s: &DeploymentStatus) -> bool {
    let n = d.spec.replicas.unwrap_or(1);
    s.updated_replicas == n
        && s.replicas == n
        && s.available_replicas == n
        && s.observed_generation >= d.metadata.generation
}

fn is_progressing(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    new.updated_replicas > old.updated_replicas
        || new.replicas - new.updated_replicas < old.replicas - old.updated_replicas
        || new.ready_replicas > old.ready_replicas
        || new.available_replicas > old.available_replicas
}

fn deadline_of(d: &DeploymentView, c: &Condition) -> Option<Timestamp> {
    let from: Timestamp = c.last_update_time.as_ref()?.parse().ok()?;
    from.checked_add(Duration::from_secs(u64::try_from(d.spec.progress_deadline_seconds?).ok()?)).ok()
}

fn is_timed_out(d: &DeploymentView, s: &DeploymentStatus, now: Timestamp) -> bool {
    match condition::find(&s.conditions, PROGRESSING) {
        Some(c) if c.reason == NEW_SET_AVAILABLE => false,
        Some(c) if c.reason == TIMED_OUT => true,
        Some(c) => deadline_of(d, c).is_some_and(|t| t < now),
        None => false,
    }
}

/// The status after a step of the rollout, with Progressing and ReplicaFailure.
pub fn rollout(
    d: &DeploymentView,
    sets: &[ReplicaSetView],
    new: Option<&ReplicaSetView>,
    now: Timestamp,
) -> DeploymentStatus {
    let mut s = calculate(d, sets, new, now);
    let time = format_seconds(now);
    if !has_deadline(d) {
        condition::remove(&mut s.conditions, PROGRESSING);
    }
    let current = condition::find(&d.status.conditions, PROGRESSING);
    let was_complete = s.replicas == s.updated_replicas && current.is_some_and(|c| c.reason == NEW_SET_AVAILABLE);
    if has_deadline(d) && !was_complete {
        let who = match new {
            Some(n) => format!("ReplicaSet {:?}", n.metadata.name),
            None => format!("Deployment {:?}", d.metadata.name),
        };
        let make = |status: &str, reason: &str, what: &str| {
            Condition::new(PROGRESSING, status, reason, format!("{who} {what}."), &time).updated_at(&time)
        };
        if is_complete(d, &s) {
            condition::set(&mut s.conditions, make("True", NEW_SET_AVAILABLE, "has successfully progressed"));
        } else if is_progressing(&d.status, &s) {
            let mut c = make("True", "ReplicaSetUpdated", "is progressing");
            // Each step of progress moves the update time, which the deadline counts from.
            if let Some(current) = current.filter(|c| c.status == "True") {
                c.last_transition_time.clone_from(&current.last_transition_time);
            }
            condition::remove(&mut s.conditions, PROGRESSING);
            s.conditions.push(c);
        } else if is_timed_out(d, &s, now) {
            condition::set(&mut s.conditions, make("False", TIMED_OUT, "has timed out progressing"));
        }
    }
    match replica_failure(sets, new) {
        Some(f) => condition::set(&mut s.conditions, f.updated_at(&time)),
        None => condition::remove(&mut s.conditions, REPLICA_FAILURE),
    }
    s
}

/// The newest set's failure, or else any other's.
fn replica_failure(sets: &[ReplicaSetView], new: Option<&ReplicaSetView>) -> Option<Condition> {
    let of = |s: &ReplicaSetView| condition::find(&s.status.conditions, REPLICA_FAILURE).cloned();
    new.and_then(of).or_else(|| sets.iter().find_map(of))
}

/// When to look again whether the deadline has passed; `None`: there is nothing to wait for.
pub fn check_again(d: &DeploymentView, s: &DeploymentStatus, now: Timestamp) -> Option<Duration> {
    let c = condition::find(&d.status.conditions, PROGRESSING)?;
    if !has_deadline(d) || is_complete(d, s) || c.reason == TIMED_OUT || c.reason == NEW_SET_AVAILABLE {
        return None;
    }
    let left = now.duration_until(deadline_of(d, c)?).as_secs().max(0);
    // A second more than the rest: times on the wire are whole seconds.
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0) + 1))
}

/// The condition a deployment gets when it is paused or resumed; `None`: it has it.
pub fn paused_condition(d: &DeploymentView, now: Timestamp) -> Option<Condition> {
    if !has_deadline(d) {
        return None;
    }
    let current = condition::find(&d.status.conditions, PROGRESSING);
    if current.is_some_and(|c| c.reason == TIMED_OUT) {
        return None;
    }
    let shown = current.is_some_and(|c| c.reason == PAUSED);
    let time = format_seconds(now);
    let (reason, message) = match (d.spec.paused, shown) {
        (true, false) => (PAUSED, "Deployment is paused"),
        (false, true) => ("DeploymentResumed", "Deployment is resumed"),
        _ => return None,
    };
    Some(Condition::new(PROGRESSING, "Unknown", reason, message, &time).updated_at(&time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment(status: serde_json::Value, conditions: serde_json::Value) -> DeploymentView {
        let mut d: DeploymentView = serde_json::from_value(json!({
            "metadata": {"name": "web", "generation": 2},
            "spec": {"replicas": 3, "progressDeadlineSeconds": 60, "strategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}},
            "status": status,
        }))
        .unwrap();
        d.status.conditions = serde_json::from_value(conditions).unwrap();
        d
    }
    fn set(name: &str, replicas: i32, available: i32) -> ReplicaSetView {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"replicas": replicas},
            "status": {"replicas": replicas, "readyReplicas": available, "availableReplicas": available,
                "terminatingReplicas": 0}}))
        .unwrap()
    }
    fn progressing(reason: &str, at: &str) -> serde_json::Value {
        json!([{"type": "Progressing", "status": "True", "reason": reason, "lastUpdateTime": at, "lastTransitionTime": at}])
    }
    fn at(s: &str) -> Timestamp {
        s.parse().unwrap()
    }

    #[test]
    fn what_rollout_status_reads() {
        let start = "2026-01-01T00:00:00Z";
        let rows = [
            // (old numbers, old reason, sets, time, reason, status, message)
            (
                (0, 0),
                "NewReplicaSetCreated",
                vec![set("a", 3, 1)],
                "2026-01-01T00:00:30Z",
                "ReplicaSetUpdated",
                "True",
                "ReplicaSet \"a\" is progressing.",
            ),
            (
                (3, 1),
                "ReplicaSetUpdated",
                vec![set("a", 3, 3)],
                "2026-01-01T00:00:30Z",
                NEW_SET_AVAILABLE,
                "True",
                "ReplicaSet \"a\" has successfully progressed.",
            ),
            (
                (3, 1),
                "ReplicaSetUpdated",
                vec![set("a", 3, 1)],
                "2026-01-01T00:00:59Z",
                "ReplicaSetUpdated",
                "True",
                "",
            ),
            (
                (3, 1),
                "ReplicaSetUpdated",
                vec![set("a", 3, 1)],
                "2026-01-01T00:01:01Z",
                TIMED_OUT,
                "False",
                "ReplicaSet \"a\" has timed out progressing.",
            ),
            // Done before: a pod that dies afterwards is no failed rollout.
            ((3, 3), NEW_SET_AVAILABLE, vec![set("a", 3, 1)], "2026-01-01T00:09:00Z", NEW_SET_AVAILABLE, "True", ""),
        ];
        for ((replicas, available), reason, sets, time, want, status, message) in rows {
            let numbers = json!({"replicas": replicas, "updatedReplicas": replicas, "readyReplicas": available,
                "availableReplicas": available});
            let d = deployment(numbers, progressing(reason, start));
            let got = rollout(&d, &sets, Some(&sets[0]), at(time));
            let c = condition::find(&got.conditions, PROGRESSING).unwrap();
            assert_eq!((c.reason.as_str(), c.status.as_str(), c.message.as_str()), (want, status, message), "{time}");
            assert_eq!(got.observed_generation, 2);
        }
    }

    #[test]
    fn availability_and_failures() {
        let now = at("2026-01-01T00:00:00Z");
        let d = deployment(json!({}), json!([]));
        let s = rollout(&d, &[set("a", 3, 2)], None, now);
        assert_eq!(condition::find(&s.conditions, AVAILABLE).unwrap().reason, "MinimumReplicasAvailable");
        assert_eq!((s.unavailable_replicas, s.terminating_replicas), (1, Some(0)));
        let mut failing = set("a", 3, 1);
        failing.status.conditions = vec![Condition::new(REPLICA_FAILURE, "True", "FailedCreate", "quota", "t")];
        let s = rollout(&d, &[failing], None, now);
        assert_eq!(condition::find(&s.conditions, AVAILABLE).unwrap().status, "False");
        assert_eq!(condition::find(&s.conditions, REPLICA_FAILURE).unwrap().message, "quota");
    }

    #[test]
    fn waiting_and_pausing() {
        let start = "2026-01-01T00:00:00Z";
        let mut d = deployment(json!({}), progressing("ReplicaSetUpdated", start));
        let s = d.status.clone();
        assert_eq!(check_again(&d, &s, at("2026-01-01T00:00:20Z")), Some(Duration::from_secs(41)));
        assert_eq!(check_again(&d, &s, at("2026-01-01T00:05:00Z")), Some(Duration::from_secs(1)));
        assert_eq!(paused_condition(&d, at(start)), None);
        d.spec.paused = true;
        assert_eq!(paused_condition(&d, at(start)).unwrap().reason, PAUSED);
        d.status.conditions[0].reason = PAUSED.into();
        assert_eq!(paused_condition(&d, at(start)), None);
        d.spec.paused = false;
        assert_eq!(paused_condition(&d, at(start)).unwrap().reason, "DeploymentResumed");
        d.spec.progress_deadline_seconds = Some(i32::MAX);
        assert_eq!((paused_condition(&d, at(start)), check_again(&d, &s, at(start))), (None, None));
    }
}
