//! The taints that a node should have because of its conditions, and whether a pod tolerates them. Pure. Upstream
//! `pkg/controller/nodelifecycle`, `component-helpers/scheduling/corev1`.
use std::time::Duration;

use jiff::Timestamp;

use crate::shared::toleration::tolerates;
use crate::views::condition;
use crate::views::{NodeView, Taint, Toleration};

/// The taint of a node that is not ready.
pub const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// The taint of a node without heartbeats.
pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// The taint with which an administrator marks a node as permanently shut down.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// A condition, its status, and the corresponding taint.
const BY_CONDITION: &[(&str, &str, &str)] = &[
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];

/// The action for the `NoExecute` taint of a node that is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoExecute {
    /// Keep an existing taint and add none.
    AsItIs,
    /// Add the taint.
    Put,
    /// Remove the taint, since no node of the cluster is ready.
    TakeBack,
}

/// Returns the key of the `NoExecute` taint for the node's state, or an empty string for a ready node.
fn driving(node: &NodeView) -> &'static str {
    match ready(node) {
        "False" => NOT_READY,
        "Unknown" => UNREACHABLE,
        _ => "",
    }
}

fn ready(node: &NodeView) -> &str {
    condition::find(&node.status.conditions, "Ready").map_or("", |c| c.status.as_str())
}

fn drives(t: &Taint) -> bool {
    t.effect == "NoExecute" && (t.key == NOT_READY || t.key == UNREACHABLE)
}

/// Whether a node is not ready and does not have the `NoExecute` taint yet.
pub fn awaits_turn(node: &NodeView) -> bool {
    !driving(node).is_empty() && !node.spec.taints.iter().any(drives)
}

/// Returns the node's desired taints, or `None` if nothing changes. Other taints are kept in their order.
pub fn desired(node: &NodeView, execute: NoExecute, now: &str) -> Option<Vec<Taint>> {
    let status = |kind: &str| condition::find(&node.status.conditions, kind).map_or("", |c| c.status.as_str());
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for (kind, when, taint) in BY_CONDITION {
        if status(kind) == *when {
            wanted.push((taint, "NoSchedule"));
        }
    }
    if node.spec.unschedulable {
        wanted.push((UNSCHEDULABLE, "NoSchedule"));
    }
    let driving = driving(node);
    let has = node.spec.taints.iter().any(drives);
    if !driving.is_empty() && (execute == NoExecute::Put || execute == NoExecute::AsItIs && has) {
        wanted.push((driving, "NoExecute"));
    }
    // A node that has not posted a status keeps the taint from its registration.
    if status("Ready").is_empty() && node.spec.taints.iter().any(|t| t.key == NOT_READY && t.effect == "NoSchedule") {
        wanted.push((NOT_READY, "NoSchedule"));
    }
    let ours = |t: &Taint| match t.effect.as_str() {
        "NoSchedule" => t.key == UNSCHEDULABLE || BY_CONDITION.iter().any(|b| b.2 == t.key),
        _ => drives(t),
    };
    let wants = |t: &Taint| wanted.iter().any(|(k, e)| *k == t.key && *e == t.effect);
    let mut out: Vec<Taint> = node.spec.taints.iter().filter(|t| !ours(t) || wants(t)).cloned().collect();
    for (key, effect) in wanted {
        if !out.iter().any(|t| t.key == key && t.effect == effect) {
            out.push(Taint {
                key: key.into(),
                effect: effect.into(),
                time_added: Some(now.to_owned()),
                ..Taint::default()
            });
        }
    }
    (out != node.spec.taints).then_some(out)
}

/// When a pod must be evicted from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    Never,
    /// At this time, which may be in the past.
    At(Timestamp),
}

/// Returns when a node's `NoExecute` taints evict a pod. `since` returns the time from which toleration seconds of a
/// taint count.
pub fn eviction(
    taints: &[Taint],
    tolerations: &[Toleration],
    now: Timestamp,
    since: impl Fn(&Taint) -> Timestamp,
) -> Eviction {
    let mut at: Option<Timestamp> = None;
    for taint in taints.iter().filter(|t| t.effect == "NoExecute") {
        let mut used = tolerations.iter().filter(|t| tolerates(t, taint)).peekable();
        if used.peek().is_none() {
            return Eviction::At(now);
        }
        let seconds = used.filter_map(|t| t.toleration_seconds).min();
        if let Some(s) = seconds {
            // Values beyond the maximum time are capped.
            let tolerated = Duration::from_secs(u64::try_from(s).unwrap_or(0));
            let when = Timestamp::checked_add(since(taint), tolerated).unwrap_or(Timestamp::MAX);
            at = Some(at.map_or(when, |a| a.min(when)));
        }
    }
    at.map_or(Eviction::Never, Eviction::At)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(conditions: Value, taints: Value, unschedulable: bool) -> NodeView {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": conditions},
            "spec": {"taints": taints, "unschedulable": unschedulable}}))
        .unwrap()
    }
    fn condition(kind: &str, status: &str) -> Value {
        json!({"type": kind, "status": status})
    }
    fn taint(key: &str, effect: &str) -> Value {
        json!({"key": key, "effect": effect})
    }

    #[test]
    fn taints_follow_conditions() {
        let own = taint("example.com/mine", "NoSchedule");
        let (down, gone) = (json!([condition("Ready", "False")]), json!([condition("Ready", "Unknown")]));
        let (no_more, leave) = (taint(NOT_READY, "NoSchedule"), taint(NOT_READY, "NoExecute"));
        let (lost, flee) = ((UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute"));
        for (conditions, taints, execute, want) in [
            (&down, json!([no_more]), NoExecute::AsItIs, None),
            (&down, json!([no_more]), NoExecute::Put, Some(vec![(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")])),
            (&down, json!([no_more, leave]), NoExecute::AsItIs, None),
            (&down, json!([no_more, leave]), NoExecute::TakeBack, Some(vec![(NOT_READY, "NoSchedule")])),
            (&gone, json!([no_more, leave]), NoExecute::AsItIs, Some(vec![lost, flee])),
            (&gone, json!([]), NoExecute::AsItIs, Some(vec![lost])),
        ] {
            let node = node(conditions.clone(), taints.clone(), false);
            let got = desired(&node, execute, "t");
            let got = got.as_ref().map(|l| l.iter().map(|t| (t.key.as_str(), t.effect.as_str())).collect::<Vec<_>>());
            assert_eq!(got, want, "{conditions} {taints} {execute:?}");
        }
        let rows = [
            (json!([condition("Ready", "True")]), json!([]), false, None),
            (
                json!([condition("Ready", "True")]),
                json!([taint(NOT_READY, "NoSchedule"), own]),
                false,
                Some(vec![("example.com/mine", "NoSchedule")]),
            ),
            (
                json!([condition("Ready", "False")]),
                json!([]),
                false,
                Some(vec![(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]),
            ),
            (
                json!([condition("Ready", "Unknown")]),
                json!([taint(NOT_READY, "NoExecute")]),
                false,
                Some(vec![(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]),
            ),
            (
                json!([condition("Ready", "True"), condition("DiskPressure", "True")]),
                json!([]),
                true,
                Some(vec![("node.kubernetes.io/disk-pressure", "NoSchedule"), (UNSCHEDULABLE, "NoSchedule")]),
            ),
            (json!([]), json!([taint(NOT_READY, "NoSchedule")]), false, None),
            (json!([]), json!([]), false, None),
            (json!([condition("Ready", "True")]), json!([taint(UNSCHEDULABLE, "NoSchedule")]), false, Some(vec![])),
        ];
        for (conditions, taints, unschedulable, want) in rows {
            let got = desired(&node(conditions.clone(), taints, unschedulable), NoExecute::Put, "t");
            let got = got.map(|l| l.into_iter().map(|t| (t.key, t.effect)).collect::<Vec<_>>());
            let want = want.map(|l| l.into_iter().map(|(k, e)| (k.to_owned(), e.to_owned())).collect::<Vec<_>>());
            assert_eq!(got, want, "{conditions}");
        }
    }

    #[test]
    fn who_must_leave_when() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let t = |v: Value| serde_json::from_value::<Vec<Toleration>>(v).unwrap();
        let taints: Vec<Taint> = serde_json::from_value(json!([
            {"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": "2026-01-01T00:09:00Z"},
            {"key": "x", "effect": "NoSchedule"}]))
        .unwrap();
        let at = |s: &str| Eviction::At(s.parse().unwrap());
        let rows = [
            (json!([]), Eviction::At(now)),
            (json!([{"operator": "Exists"}]), Eviction::Never),
            (
                json!([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]),
                at("2026-01-01T00:14:00Z"),
            ),
            (json!([{"key": UNREACHABLE, "operator": "Exists", "tolerationSeconds": -1}]), at("2026-01-01T00:09:00Z")),
            (
                json!([{"key": UNREACHABLE, "operator": "Exists", "tolerationSeconds": i64::MAX}]),
                Eviction::At(Timestamp::MAX),
            ),
            (json!([{"key": UNREACHABLE, "value": "y"}]), Eviction::At(now)),
            (json!([{"key": "other", "operator": "Exists"}]), Eviction::At(now)),
        ];
        let since = |t: &Taint| t.time_added.as_ref().unwrap().parse().unwrap();
        for (tolerations, want) in rows {
            assert_eq!(eviction(&taints, &t(tolerations.clone()), now, since), want, "{tolerations}");
        }
        assert_eq!(eviction(&taints[1..], &[], now, since), Eviction::Never, "NoSchedule evicts no pod");
    }
}
