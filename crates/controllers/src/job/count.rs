//! Counting of terminated pods, so that each is counted exactly once even if the controller is interrupted (KEP-2307).
//! A pod has a finalizer until it is counted. First its UID is written into the status, then the finalizer is removed,
//! and then the counter grows and the UID is removed. At every step the status and the finalizers together are
//! consistent. No I/O here.
use std::collections::{BTreeSet, HashSet};

use jiff::Timestamp;

use super::assess::{Assessment, FAILURE_TARGET, SUCCESS_CRITERIA_MET, number};
use super::pods::JobPod;
use super::policies;
use crate::views::{JobCondition, JobStatus, JobView};

/// The maximum number of uncounted pods in a status, which keeps it below 20 KB.
pub const UNCOUNTED_MAX: usize = 500;

/// The steps that follow once the status with the uncounted pods is written.
#[derive(Debug, Default)]
pub struct Counting {
    /// Pods whose finalizer must be removed.
    pub to_release: Vec<JobPod>,
    /// UIDs of the pods that have the finalizer.
    pub tracked: HashSet<String>,
    /// Whether there are more uncounted pods than fit into the status.
    pub more: bool,
    /// The actions of the pod failure policy that were applied, for the metric.
    pub actions: Vec<&'static str>,
}

/// Adds terminated pods to the uncounted lists of the assessment's status, and the interim condition of a finishing
/// job.
pub fn note(job: &JobView, all: &[JobPod], released: &HashSet<String>, a: &mut Assessment, now: Timestamp) -> Counting {
    let mut pods: Vec<&JobPod> = all.iter().filter(|p| p.tracked && !released.contains(p.uid())).collect();
    if a.indexes.is_some() {
        pods.sort_by_key(|p| p.index);
    }
    let mut c = Counting { tracked: pods.iter().map(|p| p.uid().to_owned()).collect(), ..Counting::default() };
    // Pods that were already listed, by UID. Those that are counted now are removed from the lists.
    let before = a.status.uncounted_terminated_pods.clone().unwrap_or_default();
    settle(&mut a.status, &c.tracked);
    let noted_failed: HashSet<&str> = before.failed.iter().map(String::as_str).collect();
    let noted_succeeded: HashSet<&str> = before.succeeded.iter().map(String::as_str).collect();
    let mut indexes = BTreeSet::new();
    for pod in pods {
        let failed = pod.failed(job);
        if !may_release(job, a, pod, failed) {
            continue;
        }
        c.to_release.push(pod.clone());
        let known_index = match &a.indexes {
            None => true,
            Some(state) => pod.index_below(state.completions).is_some(),
        };
        let uncounted = a.status.uncounted_terminated_pods.get_or_insert_default();
        if pod.succeeded() && !noted_failed.contains(pod.uid()) {
            match (&a.indexes, pod.index) {
                // An index that has succeeded is not counted again, so the UID is not needed.
                (Some(state), Some(i)) if known_index && !state.before.has(i) => {
                    indexes.insert(i);
                }
                (None, _) if !noted_succeeded.contains(pod.uid()) => {
                    uncounted.succeeded.push(pod.uid().to_owned());
                }
                _ => {}
            }
        } else if (failed || ends_others(a.target.as_ref())) && known_index && !noted_failed.contains(pod.uid()) {
            let judged = policies::judge(job.spec.pod_failure_policy.as_ref(), &pod.pod);
            c.actions.extend(judged.action());
            if judged.counts() {
                uncounted.failed.push(pod.uid().to_owned());
            }
        }
        if indexes.len() + uncounted.succeeded.len() + uncounted.failed.len() >= UNCOUNTED_MAX {
            c.more = true;
            break;
        }
    }
    note_indexes(a, indexes);
    note_target(a, now);
    c
}

/// Whether the job failed, so that every pod that has not terminated counts as failed.
fn ends_others(target: Option<&JobCondition>) -> bool {
    target.is_some_and(|t| t.r#type != SUCCESS_CRITERIA_MET)
}

/// Whether the pod's finalizer may be removed: the pod terminated or the job finished. A failed pod whose failure count
/// its replacement needs keeps it.
fn may_release(job: &JobView, a: &Assessment, pod: &JobPod, failed: bool) -> bool {
    if job.metadata.is_deleting() || a.target.is_some() || pod.succeeded() {
        return true;
    }
    let waits = a.indexes.as_ref().zip(pod.index).and_then(|(state, i)| state.to_replace.get(&i));
    failed && waits.is_none_or(|w| w.uid() != pod.uid())
}

fn note_indexes(a: &mut Assessment, fresh: BTreeSet<u32>) {
    let Some(state) = &mut a.indexes else { return };
    state.succeeded = state.succeeded.with(fresh);
    a.status.succeeded = number(state.succeeded.len());
    a.status.completed_indexes = state.succeeded.to_string();
    a.status.failed_indexes = state.failed.as_ref().map(ToString::to_string);
}

/// Sets the interim condition, which must be in the status before finalizers are removed. The target becomes the final
/// condition.
fn note_target(a: &mut Assessment, now: Timestamp) {
    let Some(target) = a.target.take() else { return };
    let last = match target.r#type.as_str() {
        FAILURE_TARGET => "Failed",
        SUCCESS_CRITERIA_MET => "Complete",
        _ => {
            a.target = Some(target);
            return;
        }
    };
    a.target = Some(JobCondition::new(last, "True", &target.reason, target.message.clone(), now));
    if a.status.holds(&target.r#type).is_none() {
        a.status.conditions.push(target);
    }
}

/// Moves the pods without a finalizer from the uncounted lists into the counters.
pub fn settle(status: &mut JobStatus, tracked: &HashSet<String>) {
    let Some(uncounted) = &mut status.uncounted_terminated_pods else { return };
    let take = |list: &mut Vec<String>| {
        let before = list.len();
        list.retain(|uid| tracked.contains(uid));
        number(before - list.len())
    };
    let (succeeded, failed) = (take(&mut uncounted.succeeded), take(&mut uncounted.failed));
    status.succeeded = status.succeeded.saturating_add(succeeded);
    status.failed = status.failed.saturating_add(failed);
}

/// Sets the final condition unless pods are uncounted or terminating. Returns whether it was set.
pub fn finish(status: &mut JobStatus, target: Option<&JobCondition>, terminating: i32) -> bool {
    let Some(target) = target else { return false };
    let left = status.uncounted_terminated_pods.as_ref().map_or(0, |u| u.succeeded.len() + u.failed.len());
    if left > 0 || terminating > 0 {
        return false;
    }
    status.put(target.clone());
    if target.r#type == "Complete" {
        // The clock may have been set back, and validation rejects a completion time before the start time.
        status.completion_time = target.last_transition_time.clone().max(status.start_time.clone());
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::sample::{job, look, now, pods, uids};
    use serde_json::{Value, json};

    /// Checks what one sync writes: the lists and counters before finalizers are removed, the pods that lose theirs,
    /// and the counters afterwards.
    fn check(spec: &Value, status: &Value, line: &str, want: [&str; 3]) {
        let (j, all) = (job(spec, status), pods(line));
        let mut a = look(&j, &all);
        let mut c = note(&j, &all, &HashSet::new(), &mut a, now());
        let words = |s: &JobStatus| {
            let u = s.uncounted_terminated_pods.clone().unwrap_or_default();
            format!("{}|{} {}/{}", u.succeeded.concat(), u.failed.concat(), s.succeeded, s.failed)
        };
        let before = words(&a.status);
        c.tracked.clear();
        settle(&mut a.status, &c.tracked);
        assert_eq!([before.as_str(), &uids(&c.to_release), &words(&a.status)], want, "{spec} {status} {line}");
    }

    #[test]
    fn nothing_is_lost_or_counted_twice() {
        let none = json!({});
        check(&none, &none, "a:Succeeded b:Failed c:Running", ["a|b 0/0", "ab", "| 1/1"]);
        // Listed, but the finalizers were not removed yet: the same pods again.
        let noted = json!({"uncountedTerminatedPods": {"succeeded": ["a"], "failed": ["b"]}});
        check(&none, &noted, "a:Succeeded b:Failed", ["a|b 0/0", "ab", "| 1/1"]);
        // Finalizers removed, but not counted: the pods may even be deleted.
        check(&none, &noted, "a:Succeeded-", ["| 1/1", "", "| 1/1"]);
        check(&none, &noted, "a:Succeeded b:Failed-", ["a| 0/1", "a", "| 1/1"]);
        // Counted.
        check(&none, &json!({"succeeded": 1, "failed": 1}), "a:Succeeded- b:Failed-", ["| 1/1", "", "| 1/1"]);
        // A pod that counted as failed because of its deletion, and then succeeded.
        check(&none, &json!({"uncountedTerminatedPods": {"failed": ["a"]}}), "a:Succeeded", ["|a 0/0", "a", "| 0/1"]);
        // A pod that is being deleted counts as failed, unless the job waits for its termination.
        check(&none, &none, "a:Running!", ["|a 0/0", "a", "| 0/1"]);
        check(&json!({"podReplacementPolicy": "Failed"}), &none, "a:Running!", ["| 0/0", "", "| 0/0"]);
        // Remaining pods of a failed job.
        let failing = json!({"conditions": [{"type": "FailureTarget", "status": "True"}]});
        check(&none, &failing, "a:Running! b:Succeeded", ["b|a 0/0", "ab", "| 1/1"]);
        let met = json!({"conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]});
        check(&json!({"podReplacementPolicy": "Failed"}), &met, "a:Running!", ["| 0/0", "a", "| 0/0"]);
        let ignored = json!({"podFailurePolicy": {"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "Ready", "status": "True"}]}]}});
        check(&ignored, &none, "a:Failed* b:Failed", ["|b 0/0", "ab", "| 0/1"]);
    }

    #[test]
    fn indexes_count_once() {
        let spec = json!({"completionMode": "Indexed", "completions": 4});
        let status = json!({"completedIndexes": "0", "succeeded": 1});
        check(&spec, &status, "a:Succeeded/0 b:Succeeded/2 c:Succeeded/2 d:Succeeded/9", ["| 2/0", "abcd", "| 2/0"]);
        check(&spec, &status, "a:Failed/1 b:Failed/9 c:Failed", ["|a 1/0", "abc", "| 1/1"]);
        let limits = json!({"completionMode": "Indexed", "completions": 4, "backoffLimitPerIndex": 1});
        check(&limits, &status, "a:Failed/1+0", ["| 1/0", "", "| 1/0"]);
        check(&limits, &status, "a:Failed/1+0 b:Running/1", ["|a 1/0", "a", "| 1/1"]);
        check(&limits, &status, "a:Failed/1+1", ["|a 1/0", "a", "| 1/1"]);
        let (j, all) = (job(&limits, &status), pods("a:Failed/1+1 b:Succeeded/2"));
        let mut a = look(&j, &all);
        note(&j, &all, &HashSet::new(), &mut a, now());
        assert_eq!((a.status.completed_indexes.as_str(), a.status.failed_indexes.as_deref()), ("0,2", Some("1")));
    }

    #[test]
    fn the_list_is_bounded() {
        let line: String = (0..UNCOUNTED_MAX + 5).map(|i| format!("{i}:Succeeded ")).collect();
        let (j, all) = (job(&json!({"completions": 9999}), &json!({})), pods(&line));
        let mut a = look(&j, &all);
        let c = note(&j, &all, &HashSet::new(), &mut a, now());
        assert_eq!((c.to_release.len(), c.more), (UNCOUNTED_MAX, true));
    }

    #[test]
    fn the_end_waits_for_the_last_pod() {
        let (j, all) = (job(&json!({"backoffLimit": 0}), &json!({})), pods("a:Failed"));
        let mut a = look(&j, &all);
        note(&j, &all, &HashSet::new(), &mut a, now());
        assert!(a.status.holds(FAILURE_TARGET).is_some(), "said before the pods are let go");
        assert!(!finish(&mut a.status, a.target.as_ref(), 0), "a is not counted");
        settle(&mut a.status, &HashSet::new());
        assert!(!finish(&mut a.status, a.target.as_ref(), 1), "one terminates");
        assert!(finish(&mut a.status, a.target.as_ref(), 0));
        assert_eq!(a.status.finished().map(|c| c.reason.as_str()), Some("BackoffLimitExceeded"));
        assert_eq!(a.status.completion_time, None);
    }

    #[test]
    fn no_job_ends_before_it_began() {
        let (early, late) = (Some("2026-01-01T00:00:00Z".to_owned()), Some("2026-01-01T01:00:00Z".to_owned()));
        for (began, ended) in [(&early, &late), (&late, &early)] {
            let mut status = JobStatus { start_time: began.clone(), ..JobStatus::default() };
            let end = JobCondition {
                last_transition_time: ended.clone(),
                ..JobCondition::new("Complete", "True", "", String::new(), now())
            };
            assert!(finish(&mut status, Some(&end), 0));
            assert_eq!(status.completion_time, late, "began at {began:?}, and it was {ended:?} when it was complete");
        }
    }
}
