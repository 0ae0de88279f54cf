//! The view of a job on its pods: tracking finalizer, completion index and outcome.
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::indexes::Indexes;
use super::policies::{self, Failure};
use crate::views::{JobView, PodView};

/// The finalizer of a pod that is not yet counted in the job's status (KEP-2307).
pub const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// The annotation and label with the completion index of a pod.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// The annotation with the number of failures of the index before this pod.
pub const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// The annotation with the number of failures of the index that the pod failure policy ignored.
pub const INDEX_FAILURES_IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// A pod of a job.
#[derive(Clone, Debug)]
pub struct JobPod {
    pub pod: Arc<PodView>,
    /// The completion index, if the pod has a valid one.
    pub index: Option<u32>,
    /// Whether the pod has the tracking finalizer.
    pub tracked: bool,
}

impl JobPod {
    /// Returns the view on a cached pod.
    pub fn new(pod: Arc<PodView>) -> Self {
        let text = pod.metadata.annotations.get(COMPLETION_INDEX);
        let index = text.and_then(|t| t.parse::<i32>().ok()).and_then(|n| u32::try_from(n).ok());
        let tracked = is_tracked(&pod);
        Self { pod, index, tracked }
    }

    pub fn uid(&self) -> &str {
        &self.pod.metadata.uid
    }

    /// Whether the pod succeeded.
    pub fn succeeded(&self) -> bool {
        self.pod.status.phase == "Succeeded"
    }

    /// Whether the pod counts as failed. A pod that is deleted before it terminates does, unless the job replaces only
    /// failed pods.
    pub fn failed(&self, job: &JobView) -> bool {
        match self.pod.status.phase.as_str() {
            "Failed" => true,
            "Succeeded" => false,
            _ => !job.replaces_only_failed() && self.pod.metadata.is_deleting(),
        }
    }

    /// Whether the pod is being deleted and has not terminated.
    pub fn is_terminating(&self) -> bool {
        self.pod.metadata.is_deleting() && !self.pod.is_terminal()
    }

    /// Returns the index if it is below `completions`.
    pub fn index_below(&self, completions: u32) -> Option<u32> {
        self.index.filter(|i| *i < completions)
    }

    /// Returns the counted failures of the index before this pod.
    pub fn failures_before(&self) -> u32 {
        number(&self.pod, INDEX_FAILURES)
    }

    /// Returns the ignored failures of the index before this pod.
    pub fn ignored_before(&self) -> u32 {
        number(&self.pod, INDEX_FAILURES_IGNORED)
    }

    /// Returns the counted and ignored failures of the index before this pod.
    pub fn all_before(&self) -> u32 {
        self.failures_before().saturating_add(self.ignored_before())
    }
}

/// Whether a pod has the tracking finalizer.
pub fn is_tracked(pod: &PodView) -> bool {
    pod.metadata.finalizers.iter().any(|f| f == TRACKING_FINALIZER)
}

fn number(pod: &PodView, annotation: &str) -> u32 {
    let n = pod.metadata.annotations.get(annotation).and_then(|t| t.parse::<i32>().ok());
    n.and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
}

/// Returns the succeeded indexes: those in the status, and those of pods that succeeded since.
pub fn succeeded_indexes(before: &Indexes, pods: &[JobPod], completions: u32) -> Indexes {
    let fresh = pods.iter().filter(|p| p.succeeded() && p.tracked);
    before.with(fresh.filter_map(|p| p.index_below(completions)).collect::<BTreeSet<_>>())
}

/// Returns the permanently failed indexes: those in the status, and those whose last pod exceeded the limit or matched
/// a rule with `FailIndex`.
pub fn failed_indexes(job: &JobView, limit: u32, pods: &[JobPod], completions: u32) -> Indexes {
    let before = Indexes::parse(job.status.failed_indexes.as_deref().unwrap_or_default(), completions);
    let exhausted = |p: &&JobPod| {
        p.failed(job)
            && match policies::judge(job.spec.pod_failure_policy.as_ref(), &p.pod) {
                Failure::FailIndex => true,
                judged => judged.counts() && p.failures_before() >= limit,
            }
    };
    let fresh = pods.iter().filter(|p| p.tracked).filter(exhausted);
    before.with(fresh.filter_map(|p| p.index_below(completions)).collect::<BTreeSet<_>>())
}

/// Returns the indexes of the pods.
pub fn indexes_of<'a>(pods: impl IntoIterator<Item = &'a JobPod>) -> BTreeSet<u32> {
    pods.into_iter().filter_map(|p| p.index).collect()
}

/// Returns the last failed pod of each index that needs a replacement. It is kept until the replacement is created,
/// which continues its failure count. `waiting` are the uncounted failed pods of unfinished indexes.
pub fn last_failed<'a>(waiting: impl IntoIterator<Item = &'a JobPod>) -> HashMap<u32, JobPod> {
    let mut last: HashMap<u32, JobPod> = HashMap::new();
    for p in waiting {
        let Some(index) = p.index else { continue };
        let later = last
            .get(&index)
            .is_none_or(|other| other.all_before() <= p.all_before() && finished(&p.pod) >= finished(&other.pod));
        if later {
            last.insert(index, p.clone());
        }
    }
    last
}

/// Returns the active pods to delete. In an indexed job these are pods without a valid index and all but one of each
/// index. More pods are added until there are `at_least`, those with the least progress first.
pub fn surplus(active: &[JobPod], indexed: Option<u32>, at_least: usize) -> Vec<JobPod> {
    let mut sorted = active.to_vec();
    sorted.sort_by(|a, b| least_far_first(&a.pod, &b.pod));
    let (mut surplus, mut rest) = (Vec::new(), Vec::new());
    match indexed {
        None => rest = sorted,
        Some(completions) => {
            // Of several pods with one index the one with the most progress is kept, which is last in this order.
            let mut held = BTreeSet::new();
            for p in sorted.into_iter().rev() {
                match p.index_below(completions) {
                    Some(i) if held.insert(i) => rest.push(p),
                    _ => surplus.push(p),
                }
            }
            rest.reverse();
            surplus.reverse();
        }
    }
    let missing = at_least.saturating_sub(surplus.len());
    surplus.extend(rest.into_iter().take(missing));
    surplus
}

/// Orders pods by progress: unscheduled pods first, then pending ones, then those that are not ready, and the newest
/// before older ones.
fn least_far_first(a: &PodView, b: &PodView) -> Ordering {
    let phase = |p: &PodView| match p.status.phase.as_str() {
        "Pending" | "" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    let restarts = |p: &PodView| p.status.container_statuses.iter().map(|c| c.restart_count).max().unwrap_or(0);
    let on_node = |p: &PodView| !p.spec.node_name.is_empty();
    on_node(a)
        .cmp(&on_node(b))
        .then_with(|| phase(a).cmp(&phase(b)))
        .then_with(|| a.is_ready().cmp(&b.is_ready()))
        .then_with(|| b.ready_since().cmp(&a.ready_since()))
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| b.created().cmp(&a.created()))
}

/// Returns when a pod terminated: when its last container did, else when it became unready, else when its deletion was
/// requested, else when it was created. Sidecars count, although they terminate after the other containers.
pub fn finished(pod: &PodView) -> Option<Timestamp> {
    let deleted = || {
        let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
        let gone: Timestamp = pod.metadata.deletion_timestamp.as_deref()?.parse().ok()?;
        gone.checked_sub(grace).ok()
    };
    let unready = || pod.condition("Ready").filter(|c| c.status == "False").and_then(|c| c.last_transition_time);
    last_container(pod).or_else(unready).or_else(deleted).or_else(|| pod.created())
}

/// Returns when the last container terminated, if all have.
fn last_container(pod: &PodView) -> Option<Timestamp> {
    let mut last = None;
    for c in &pod.status.container_statuses {
        last = last.max(Some(c.terminated.as_ref()?.finished_at?));
    }
    let sidecars = pod.spec.init_containers.iter().filter(|c| c.restart_policy == "Always");
    for sidecar in sidecars {
        let ended = pod.status.init_container_statuses.iter().filter_map(|c| c.terminated.as_deref());
        last = last.max(Some(ended.into_iter().find(|t| t.name == sidecar.name)?.finished_at?));
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, index: Option<&str>, rest: &Value) -> JobPod {
        let mut p = json!({"metadata": {"name": name, "uid": name}, "spec": {"nodeName": "n"},
            "status": {"phase": "Running"}});
        if let Some(i) = index {
            p["metadata"]["annotations"] = json!({COMPLETION_INDEX: i});
        }
        for (k, v) in rest.as_object().into_iter().flatten() {
            *p.pointer_mut(k).unwrap() = v.clone();
        }
        JobPod::new(Arc::new(serde_json::from_value(p).unwrap()))
    }

    #[test]
    fn indexes_are_read_with_care() {
        for (text, want) in [("3", Some(3)), ("0", Some(0)), ("-1", None), ("x", None), ("4294967296", None)] {
            assert_eq!(pod("p", Some(text), &Value::Null).index, want, "{text}");
        }
        assert_eq!(pod("p", None, &Value::Null).index, None);
    }

    #[test]
    fn which_active_pods_go() {
        let pending = json!({"/status/phase": "Pending"});
        let pods = [
            pod("a", Some("0"), &Value::Null),
            pod("b", Some("0"), &pending),
            pod("c", Some("1"), &Value::Null),
            pod("d", Some("7"), &Value::Null),
            pod("e", None, &Value::Null),
        ];
        let names = |pods: Vec<JobPod>| {
            let mut n: Vec<String> = pods.iter().map(|p| p.pod.metadata.name.clone()).collect();
            n.sort();
            n.concat()
        };
        assert_eq!(names(surplus(&pods, Some(2), 0)), "bde");
        assert_eq!(names(surplus(&pods, Some(9), 0)), "be");
        assert_eq!(names(surplus(&pods, None, 0)), "");
        assert_eq!(names(surplus(&pods, None, 1)), "b");
        assert_eq!(names(surplus(&pods, Some(2), 9)), "abcde");
        assert_eq!(surplus(&pods[..3], Some(2), 2).len(), 2);
    }

    #[test]
    fn the_last_failure_of_an_index_waits_for_its_replacement() {
        let failed = |name: &str, index: &str, before: &str| {
            let meta = json!({"name": name, "uid": name,
                "annotations": {COMPLETION_INDEX: index, INDEX_FAILURES: before}});
            pod(name, None, &json!({"/metadata": meta, "/status/phase": "Failed"}))
        };
        let all = [failed("a", "0", "1"), failed("b", "0", "0"), failed("c", "2", "x")];
        let last = last_failed(&all);
        assert_eq!((last[&0].uid(), last[&2].uid(), last.len()), ("a", "c", 2));
        assert_eq!((last[&0].all_before(), last[&2].all_before()), (1, 0));
    }
}
