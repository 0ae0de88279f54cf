//! The next steps of a stateful set. Pure. Upstream `stateful_set_control.go`.
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::identity::NAME_LABEL;
use crate::shared::history::HASH_LABEL;
use crate::shared::pods::until_available;
use crate::views::{PodView, StatefulSetView};

/// The maximum number of pods created in one sync with parallel pod management.
const BURST_MAX: usize = 500;

/// A step for one pod of the set.
#[derive(Clone, Debug)]
pub enum PodStep {
    /// Create the pod with this ordinal from the current or the update revision.
    Create {
        /// The ordinal in the pod's name.
        ordinal: i64,
        /// Whether the pod has the current revision, which is the one before the update.
        of_current: bool,
    },
    /// Delete the terminated pod; a new one is created once it is gone.
    Replace(Arc<PodView>),
    /// The pod is pending; create missing claims.
    EnsureClaims(i64, Arc<PodView>),
    /// Correct the pod's labels and the owners of its claims.
    Maintain(i64, Arc<PodView>),
}

/// The steps in order. Each part starts only if the previous one had no error.
#[derive(Clone, Debug, Default)]
pub struct StatefulSetPlan {
    /// Steps for pods in the set's range.
    pub steps: Vec<PodStep>,
    /// Surplus pods, whose claims may change owners.
    pub surplus: Vec<(i64, Arc<PodView>)>,
    /// Pods to delete because the set was scaled down.
    pub scale_down: Vec<Arc<PodView>>,
    /// Pods to delete for an update.
    pub update: Vec<Arc<PodView>>,
}

/// The input of a plan: the stateful set, its pods by ordinal and the name of the update revision, all at one point in
/// time.
pub struct Observation<'a> {
    pub set: &'a StatefulSetView,
    /// The set's pods by ordinal.
    pub pods: &'a BTreeMap<i64, Arc<PodView>>,
    /// The name of the update revision.
    pub update_revision: &'a str,
    pub now: Timestamp,
}

/// Whether the pod is running and ready.
pub fn is_running_and_ready(pod: &PodView) -> bool {
    pod.status.phase == "Running" && pod.is_ready()
}

/// Returns the name of a pod's revision.
pub fn revision_of(pod: &PodView) -> &str {
    pod.metadata.labels.get(HASH_LABEL).map_or("", String::as_str)
}

impl Observation<'_> {
    /// Whether a pod is available.
    pub fn is_available(&self, pod: &PodView) -> bool {
        until_available(pod, self.set.spec.min_ready_seconds, self.now).is_some_and(|d| d.is_zero())
    }

    fn serves(&self, pod: &PodView) -> bool {
        self.is_available(pod) && !pod.metadata.is_deleting()
    }

    fn is_parallel(&self) -> bool {
        self.set.spec.pod_management_policy == "Parallel"
    }

    /// Whether a new pod with this ordinal gets the current revision.
    fn is_of_current(&self, ordinal: i64) -> bool {
        let strategy = &self.set.spec.update_strategy;
        match &strategy.rolling_update {
            Some(rolling) => ordinal < self.set.start() + i64::from(rolling.partition),
            None => {
                strategy.r#type == "RollingUpdate"
                    && ordinal < self.set.start() + i64::from(self.set.status.current_replicas)
            }
        }
    }

    /// Adds the steps for one pod. Returns whether the following pods must wait with ordered pod management.
    fn for_one(&self, ordinal: i64, into: &mut Vec<PodStep>) -> bool {
        let Some(pod) = self.pods.get(&ordinal) else {
            into.push(PodStep::Create { ordinal, of_current: self.is_of_current(ordinal) });
            return true;
        };
        if pod.is_terminal() {
            if !pod.metadata.is_deleting() {
                into.push(PodStep::Replace(Arc::clone(pod)));
            }
            return true;
        }
        if pod.status.phase == "Pending" {
            into.push(PodStep::EnsureClaims(ordinal, Arc::clone(pod)));
        }
        let settled = !pod.metadata.is_deleting() && is_running_and_ready(pod) && self.is_available(pod);
        if settled || self.is_parallel() {
            into.push(PodStep::Maintain(ordinal, Arc::clone(pod)));
        }
        !settled
    }

    /// Returns the steps for pods in the set's range, and whether they block the other parts.
    fn steps(&self) -> (Vec<PodStep>, bool) {
        let (mut steps, start) = (Vec::new(), self.set.start());
        let range = start..start + self.set.replicas();
        if !self.is_parallel() {
            let blocked = range.into_iter().any(|ordinal| self.for_one(ordinal, &mut steps));
            return (steps, blocked);
        }
        let missing: Vec<i64> = range.clone().filter(|o| !self.pods.contains_key(o)).take(BURST_MAX).collect();
        for ordinal in self.pods.range(range).map(|(o, _)| *o).chain(missing) {
            self.for_one(ordinal, &mut steps);
        }
        (steps, false)
    }

    /// Returns the surplus pods to delete now. `surplus` is sorted by descending ordinal.
    fn scale_down(&self, surplus: &[(i64, Arc<PodView>)]) -> Vec<Arc<PodView>> {
        if self.is_parallel() {
            return surplus.iter().filter(|(_, p)| !p.metadata.is_deleting()).map(|(_, p)| Arc::clone(p)).collect();
        }
        let Some((_, last)) = surplus.first() else { return Vec::new() };
        let healthy = |p: &PodView| is_running_and_ready(p) && self.is_available(p);
        // An unhealthy pod blocks the scale-down, unless it is the one to delete.
        let others_sick = surplus[1..].iter().any(|(_, p)| !self.serves(p));
        if last.metadata.is_deleting() || (!healthy(last) && others_sick) {
            return Vec::new();
        }
        vec![Arc::clone(last)]
    }

    /// Returns the pods to delete now for an update.
    fn update(&self) -> Vec<Arc<PodView>> {
        let strategy = &self.set.spec.update_strategy;
        if strategy.r#type == "OnDelete" {
            return Vec::new();
        }
        let rolling = strategy.rolling_update.as_ref();
        let (start, replicas) = (self.set.start(), self.set.replicas());
        let targets = start + rolling.map_or(0, |r| i64::from(r.partition))..start + replicas;
        let outdated = |p: &PodView| revision_of(p) != self.update_revision && !p.metadata.is_deleting();
        if let Some(limit) = rolling.and_then(|r| r.max_unavailable.as_ref()) {
            let limit = limit.scaled(i32::try_from(replicas).unwrap_or(i32::MAX), false).max(1);
            let serving = self.pods.range(start..start + replicas).filter(|(_, p)| self.serves(p)).count();
            let missing = replicas.saturating_sub(i64::try_from(serving).unwrap_or(i64::MAX));
            let room = usize::try_from(i64::from(limit) - missing).unwrap_or(0);
            let candidates = self.pods.iter().rev().filter(|(o, p)| targets.contains(o) && outdated(p));
            return candidates.take(room).map(|(_, p)| Arc::clone(p)).collect();
        }
        for ordinal in targets.rev() {
            match self.pods.get(&ordinal) {
                Some(p) if outdated(p) => return vec![Arc::clone(p)],
                Some(p) if self.serves(p) => {}
                _ => return Vec::new(),
            }
        }
        Vec::new()
    }

    /// Returns the next steps. Further steps follow in later syncs.
    pub fn plan(&self) -> StatefulSetPlan {
        let (steps, blocked) = self.steps();
        let mut plan = StatefulSetPlan { steps, ..StatefulSetPlan::default() };
        if blocked {
            return plan;
        }
        let surplus = self.pods.iter().rev().filter(|(o, _)| !self.set.holds(**o));
        plan.surplus = surplus.map(|(o, p)| (*o, Arc::clone(p))).collect();
        plan.scale_down = self.scale_down(&plan.surplus);
        // With ordered pod management, the scale-down precedes the update.
        if plan.surplus.is_empty() || self.is_parallel() {
            plan.update = self.update();
        }
        plan
    }
}

/// Whether the pod has the label with its name.
pub fn has_identity(pod: &PodView) -> bool {
    pod.metadata.labels.get(NAME_LABEL) == Some(&pod.metadata.name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// `NUMBER[TRAIT…]`: `r` ready, `n` of the new revision, `g` going, `f` failed, `p` pending.
    fn pods(text: &str) -> BTreeMap<i64, Arc<PodView>> {
        let one = |t: &str| {
            let end = t.find(|c: char| !c.is_ascii_digit()).unwrap_or(t.len());
            let (number, traits) = t.split_at(end);
            let has = |c: char| traits.contains(c);
            let phase = if has('f') {
                "Failed"
            } else if has('p') {
                "Pending"
            } else {
                "Running"
            };
            let mut p = json!({"metadata": {"name": format!("s-{number}"),
                    "labels": {"controller-revision-hash": if has('n') { "new" } else { "old" }}}, "status": {"phase": phase}});
            if has('r') {
                p["status"]["conditions"] =
                    json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
            }
            if has('g') {
                p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            (number.parse().unwrap(), Arc::new(serde_json::from_value(p).unwrap()))
        };
        text.split_whitespace().map(one).collect()
    }

    fn set(spec: &Value) -> StatefulSetView {
        let v = json!({"metadata": {"name": "s"}, "spec": spec, "status": {"currentReplicas": 1}});
        serde_json::from_str(&v.to_string()).unwrap()
    }

    /// `+N` created with the new revision, `=N` with the current one, `!N` replaced, `-N` scaled down, `^N` updated.
    fn reported(set: &StatefulSetView, pods: &BTreeMap<i64, Arc<PodView>>) -> String {
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let plan = Observation { set, pods, update_revision: "new", now }.plan();
        let number = |p: &PodView| p.metadata.name.trim_start_matches("s-").to_owned();
        let mut out = Vec::new();
        for step in &plan.steps {
            match step {
                PodStep::Create { ordinal, of_current } => {
                    out.push(format!("{}{ordinal}", if *of_current { "=" } else { "+" }))
                }
                PodStep::Replace(p) => out.push(format!("!{}", number(p))),
                PodStep::EnsureClaims(..) | PodStep::Maintain(..) => {}
            }
        }
        out.extend(plan.scale_down.iter().map(|p| format!("-{}", number(p))));
        out.extend(plan.update.iter().map(|p| format!("^{}", number(p))));
        out.join(" ")
    }

    #[test]
    fn plans() {
        let ordered =
            json!({"replicas": 3, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}});
        let with = |key: &str, value: Value| {
            let mut s = ordered.clone();
            *s.pointer_mut(key).unwrap_or(&mut Value::Null) = value.clone();
            if !key[1..].contains('/') {
                s[&key[1..]] = value;
            }
            s
        };
        let parallel = with("/podManagementPolicy", json!("Parallel"));
        let canary = with("/updateStrategy/rollingUpdate/partition", json!(2));
        let on_delete = with("/updateStrategy", json!({"type": "OnDelete"}));
        let rows = [
            // Scale-up: one after the other, each when the previous one is available.
            (&ordered, "", "+0"),
            (&ordered, "0", ""),
            (&ordered, "0p", ""),
            (&ordered, "0nr", "+1"),
            (&ordered, "0nr 1nrg", ""),
            (&ordered, "0nr 2nr", "+1"),
            (&ordered, "0nr 1f 2nr", "!1"),
            (&ordered, "0nr 1fg 2nr", ""),
            (&parallel, "", "+0 +1 +2"),
            (&parallel, "1", "+0 +2"),
            (&parallel, "0f 1", "!0 +2"),
            // Scale-down: the last one first, and only when the others are healthy.
            (&ordered, "0nr 1nr 2nr 3nr 4nr", "-4"),
            (&ordered, "0nr 1nr 2nr 3nr 4nrg", ""),
            (&ordered, "0nr 1nr 2nr 3n 4n", ""),
            (&ordered, "0nr 1nr 2nr 3nr 4n", "-4"),
            (&ordered, "0nr 1n 2nr 3nr", ""),
            (&parallel, "0nr 1n 2nr 3nr 4n", "-4 -3"),
            // Updates: from the last to the first, each when those after it are available.
            (&ordered, "0r 1r 2r", "^2"),
            (&ordered, "0r 1r 2nr", "^1"),
            (&ordered, "0r 1r 2n", ""),
            (&ordered, "0nr 1nr 2nr", ""),
            (&canary, "0r 1r 2nr", ""),
            (&canary, "0r 1r 2r", "^2"),
            (&canary, "0r", "=1"),
            (&canary, "0r 1r", "+2"),
            (&on_delete, "0r 1r 2r", ""),
            (&parallel, "0r 1r 2", "^2"),
        ];
        for (spec, text, want) in rows {
            assert_eq!(reported(&set(spec), &pods(text)), want, "{text} {spec}");
        }
    }

    #[test]
    fn starts_and_limits() {
        let rolling =
            |r: Value| json!({"replicas": 4, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": r}});
        let from_two = json!({"replicas": 2, "ordinals": {"start": 2}});
        let rows = [
            (from_two.clone(), "", "+2"),
            (from_two.clone(), "0nr 1nr 2nr", "+3"),
            (from_two, "0nr 1nr 2nr 3nr", "-1"),
            (rolling(json!({"maxUnavailable": 2})), "0r 1r 2r 3r", "^3 ^2"),
            (rolling(json!({"maxUnavailable": 2})), "0r 1r 2r 3nr", "^2 ^1"),
            (rolling(json!({"maxUnavailable": "50%", "partition": 3})), "0r 1r 2r 3r", "^3"),
            (rolling(json!({"maxUnavailable": "1%"})), "0r 1r 2r 3r", "^3"),
            (json!({"replicas": 2_000_000_000}), "", "+0"),
        ];
        for (spec, text, want) in rows {
            assert_eq!(reported(&set(&spec), &pods(text)), want, "{text} {spec}");
        }
        let huge = set(&json!({"replicas": 2_000_000_000, "podManagementPolicy": "Parallel"}));
        assert_eq!(reported(&huge, &pods("")).split(' ').count(), BURST_MAX);
    }
}
