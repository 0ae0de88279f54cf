//! The assessment of a job: its counters and whether it is finished, computed from its pods without I/O. Reasons to
//! finish are checked in upstream's order (`job_controller.go`, syncJob): an earlier decision, then failures, then
//! successes.
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use kelson_meta::format_seconds;

use super::backoff::Failures;
use super::indexes::Indexes;
use super::pods::{self, JobPod};
use super::policies::{self, Failure};
use crate::views::{JobCondition, JobStatus, JobView};

/// The interim condition of a job that succeeds once its other pods are gone.
pub const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
/// The interim condition of a job that fails once its pods are gone.
pub const FAILURE_TARGET: &str = "FailureTarget";

/// The input of an assessment.
pub struct Look<'a> {
    pub job: &'a JobView,
    pub pods: &'a [JobPod],
    /// UIDs of pods whose finalizer this process removed and whose update is not yet in the cache.
    pub released: &'a HashSet<String>,
    /// Failures since the last success, from earlier syncs.
    pub failures: Failures,
    /// Whether failed containers are restarted in their pods (`restartPolicy: OnFailure`).
    pub restarts_in_place: bool,
    pub now: Timestamp,
}

/// The indexes of an indexed job.
#[derive(Clone, Debug, Default)]
pub struct IndexState {
    /// The number of indexes.
    pub completions: u32,
    /// Succeeded indexes according to the status.
    pub before: Indexes,
    /// Succeeded indexes according to the status and the pods.
    pub succeeded: Indexes,
    /// Indexes that failed permanently. `None` if the job has no `backoffLimitPerIndex`.
    pub failed: Option<Indexes>,
    /// Failed pods that are kept until their replacement is created, by index.
    pub to_replace: HashMap<u32, JobPod>,
}

/// The result of an assessment: the counters, the active pods and the condition with which the job finishes, if any.
/// [`plan`](super::plan::plan) decides from it which pods are created and deleted, and `count` completes the status.
#[derive(Clone, Debug, Default)]
pub struct Assessment {
    /// The new status. Its counters change when pods are counted.
    pub status: JobStatus,
    /// Pods that are pending or running and not being deleted.
    pub active: Vec<JobPod>,
    /// The number of ready active pods.
    pub ready: i32,
    /// The number of pods that are being deleted and have not terminated.
    pub terminating: i32,
    /// The number of succeeded pods, whether or not they are counted in the status.
    pub succeeded: i32,
    /// The number of failed pods, whether or not they are counted in the status.
    pub failed: i32,
    /// Failures since the last success, which determine the back-off of replacements.
    pub failures: Failures,
    /// The condition with which the job finishes, if it does.
    pub target: Option<JobCondition>,
    /// The indexes, if the job is indexed.
    pub indexes: Option<IndexState>,
    /// The time until `activeDeadlineSeconds` is reached.
    pub deadline_in: Option<Duration>,
}

/// Assesses a job.
pub fn assess(seen: &Look<'_>) -> Assessment {
    let job = seen.job;
    let mut status = job.status.clone();
    let uncounted = status.uncounted_terminated_pods.get_or_insert_default().clone();
    if status.start_time.is_none() && !job.is_suspended() {
        status.start_time = Some(format_seconds(seen.now));
    }
    let fresh: Vec<&JobPod> = seen.pods.iter().filter(|p| is_uncounted(seen, p)).collect();
    let succeeded: Vec<&JobPod> =
        fresh.iter().copied().filter(|p| p.succeeded() && !uncounted.succeeded.iter().any(|u| u == p.uid())).collect();
    let failed: Vec<&JobPod> =
        fresh.iter().copied().filter(|p| p.failed(job) && !uncounted.failed.iter().any(|u| u == p.uid())).collect();
    let policy = job.spec.pod_failure_policy.as_ref();
    let counted = failed.iter().filter(|p| policies::judge(policy, &p.pod).counts()).count();
    let active: Vec<JobPod> = seen.pods.iter().filter(|p| p.pod.is_active()).cloned().collect();
    let mut a = Assessment {
        ready: number(active.iter().filter(|p| p.pod.is_ready()).count()),
        terminating: number(seen.pods.iter().filter(|p| p.is_terminating()).count()),
        succeeded: status.succeeded.saturating_add(number(succeeded.len() + uncounted.succeeded.len())),
        failures: seen.failures.after(&succeeded, &failed),
        status,
        active,
        ..Assessment::default()
    };
    a.failed = a.status.failed.saturating_add(number(counted + uncounted.failed.len()));
    a.target = decided(&a.status, seen).or_else(|| limits(&mut a, seen));
    if job.is_indexed() {
        assess_indexes(&mut a, seen, &fresh);
    }
    a
}

/// Whether a terminated pod is not yet counted: it has the tracking finalizer and, in an indexed job, a valid index.
fn is_uncounted(seen: &Look<'_>, pod: &JobPod) -> bool {
    pod.tracked
        && !seen.released.contains(pod.uid())
        && (!seen.job.is_indexed() || pod.index_below(completions(seen.job)).is_some())
}

/// Returns the number of indexes of an indexed job.
pub fn completions(job: &JobView) -> u32 {
    job.spec.completions.and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
}

/// Returns the condition that an earlier sync or the pod failure policy decided.
fn decided(status: &JobStatus, seen: &Look<'_>) -> Option<JobCondition> {
    if let Some(met) = status.holds(SUCCESS_CRITERIA_MET) {
        return Some(met.clone());
    }
    if let Some(target) = status.holds(FAILURE_TARGET) {
        return Some(JobCondition::new("Failed", "True", &target.reason, target.message.clone(), seen.now));
    }
    let policy = seen.job.spec.pod_failure_policy.as_ref()?;
    let failed = seen.pods.iter().filter(|p| p.failed(seen.job));
    let message = failed.into_iter().find_map(|p| match policies::judge(Some(policy), &p.pod) {
        Failure::FailJob(message) => Some(message),
        _ => None,
    })?;
    Some(failure(seen, "PodFailurePolicy", message))
}

fn failure(seen: &Look<'_>, reason: &str, message: impl Into<String>) -> JobCondition {
    JobCondition::new(FAILURE_TARGET, "True", reason, message, seen.now)
}

/// Returns the condition of a job with too many failures or past its deadline. Sets `deadline_in` otherwise.
fn limits(a: &mut Assessment, seen: &Look<'_>) -> Option<JobCondition> {
    let job = seen.job;
    if a.failed > job.spec.backoff_limit.unwrap_or(i32::MAX) || too_many_restarts(seen) {
        return Some(failure(seen, "BackoffLimitExceeded", "Job has reached the specified backoff limit"));
    }
    if job.is_suspended() {
        return None;
    }
    let allowed = Duration::from_secs(u64::try_from(job.spec.active_deadline_seconds?).unwrap_or(0));
    let started = a.status.started()?;
    let passed = Duration::try_from(seen.now.duration_since(started)).unwrap_or_default();
    if passed >= allowed {
        return Some(failure(seen, "DeadlineExceeded", "Job was active longer than specified deadline"));
    }
    a.deadline_in = Some(allowed - passed);
    None
}

/// Whether the restarts of containers in their pods exceed the back-off limit.
fn too_many_restarts(seen: &Look<'_>) -> bool {
    if !seen.restarts_in_place {
        return false;
    }
    let live = seen.pods.iter().filter(|p| matches!(p.pod.status.phase.as_str(), "Running" | "Pending"));
    let statuses =
        live.flat_map(|p| p.pod.status.init_container_statuses.iter().chain(&p.pod.status.container_statuses));
    let restarts: i64 = statuses.map(|c| i64::from(c.restart_count)).sum();
    let limit = i64::from(seen.job.spec.backoff_limit.unwrap_or(i32::MAX));
    if limit == 0 { restarts > 0 } else { restarts >= limit }
}

fn assess_indexes(a: &mut Assessment, seen: &Look<'_>, fresh: &[&JobPod]) {
    let (job, completions) = (seen.job, completions(seen.job));
    let before = Indexes::parse(&job.status.completed_indexes, completions);
    let succeeded = pods::succeeded_indexes(&before, seen.pods, completions);
    a.succeeded = number(succeeded.len());
    let mut state = IndexState { completions, before, succeeded, ..IndexState::default() };
    if let Some(limit) = job.spec.backoff_limit_per_index {
        let limit = u32::try_from(limit).unwrap_or(0);
        let failed = pods::failed_indexes(job, limit, seen.pods, completions);
        if a.target.is_none() {
            a.target = index_limits(seen, &state, &failed);
        }
        let active = pods::indexes_of(&a.active);
        let waits = |p: &&JobPod| {
            let wanted = |i: u32| !state.succeeded.has(i) && !failed.has(i) && !active.contains(&i);
            p.failed(job) && p.index.is_some_and(wanted)
        };
        state.to_replace = pods::last_failed(fresh.iter().copied().filter(waits));
        state.failed = Some(failed);
    }
    if a.target.is_none()
        && let Some(message) = policies::succeeded(job.spec.success_policy.as_ref(), completions, &state.succeeded)
    {
        a.target = Some(JobCondition::new(SUCCESS_CRITERIA_MET, "True", "SuccessPolicy", message, seen.now));
    }
    a.indexes = Some(state);
}

/// Returns the condition of a job with too many failed indexes, or without an index that can still succeed.
fn index_limits(seen: &Look<'_>, state: &IndexState, failed: &Indexes) -> Option<JobCondition> {
    let most = seen.job.spec.max_failed_indexes.map(|n| usize::try_from(n).unwrap_or(0));
    if most.is_some_and(|most| failed.len() > most) {
        let text = "Job has exceeded the specified maximal number of failed indexes";
        return Some(failure(seen, "MaxFailedIndexesExceeded", text));
    }
    let all_ended = failed.len() + state.succeeded.len() >= state.completions as usize;
    (!failed.is_empty() && all_ended).then(|| failure(seen, "FailedIndexes", "Job has failed indexes"))
}

/// Returns the condition of a job that has all its successes and no active pod.
pub fn completed(job: &JobView, succeeded: i32, active: i32, now: Timestamp) -> Option<JobCondition> {
    let enough = match job.spec.completions {
        // Without completions one success is enough, and the job waits for its running pods.
        None => succeeded > 0,
        Some(n) => succeeded >= n,
    };
    let text = "Reached expected number of succeeded pods";
    (enough && active == 0).then(|| JobCondition::new(SUCCESS_CRITERIA_MET, "True", "CompletionsReached", text, now))
}

/// Updates the condition and the start time of a suspended or resumed job. Returns the event's reason and message if
/// that is a change.
pub fn note_suspension(job: &JobView, status: &mut JobStatus, now: Timestamp) -> Option<(&'static str, &'static str)> {
    if job.is_suspended() {
        let condition = JobCondition::new("Suspended", "True", "JobSuspended", "Job suspended", now);
        return status.put(condition).then(|| {
            status.start_time = None;
            ("Suspended", "Job suspended")
        });
    }
    let condition = JobCondition::new("Suspended", "False", "JobResumed", "Job resumed", now);
    status.put(condition).then(|| {
        // The deadline starts here, since it applies to the time since the last resume.
        status.start_time = Some(format_seconds(now));
        ("Resumed", "Job resumed")
    })
}

/// Converts a count to the API's type.
pub fn number(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::sample::{job, look, look_at, pods};
    use serde_json::{Value, json};

    fn target(a: &Assessment) -> String {
        a.target.as_ref().map(|t| format!("{} {}", t.r#type, t.reason)).unwrap_or_default()
    }

    #[test]
    fn counts() {
        let status = json!({"succeeded": 3, "failed": 1,
            "uncountedTerminatedPods": {"succeeded": ["a", "x"], "failed": ["y"]}});
        let seen = pods("a:Succeeded b:Succeeded c:Succeeded- d:Failed e:Running* f:Running! g:Pending h:Failed!-");
        let a = look(&job(&json!({}), &status), &seen);
        assert_eq!((a.succeeded, a.failed), (3 + 2 + 1, 1 + 1 + 2), "b is new; d and f, which goes");
        assert_eq!((a.active.len(), a.ready, a.terminating), (2, 1, 1));
        let waits = job(&json!({"podReplacementPolicy": "Failed"}), &status);
        assert_eq!(look(&waits, &seen).failed, 3, "f has not failed yet");
    }

    #[test]
    fn ends() {
        let codes = json!({"rules": [{"action": "FailJob", "onPodConditions": []}]});
        let met = json!({"conditions": [{"type": "SuccessCriteriaMet", "status": "True", "reason": "R"}]});
        let failing = json!({"conditions": [{"type": "FailureTarget", "status": "True", "reason": "R"}]});
        let indexed = |more: Value| {
            let mut spec = json!({"completionMode": "Indexed", "completions": 4});
            for (k, v) in more.as_object().unwrap() {
                spec[k] = v.clone();
            }
            spec
        };
        let rows = [
            (json!({}), json!({}), "a:Failed b:Failed", ""),
            (json!({"backoffLimit": 1}), json!({}), "a:Failed b:Failed", "FailureTarget BackoffLimitExceeded"),
            (json!({"backoffLimit": 1}), json!({"failed": 1}), "a:Failed", "FailureTarget BackoffLimitExceeded"),
            (json!({"backoffLimit": 0}), json!({}), "a:Failed-", ""),
            (json!({"activeDeadlineSeconds": 3600}), json!({}), "a:Running", "FailureTarget DeadlineExceeded"),
            (json!({"activeDeadlineSeconds": 3601}), json!({}), "a:Running", ""),
            (json!({"activeDeadlineSeconds": 1, "suspend": true}), json!({}), "a:Running", ""),
            (json!({"backoffLimit": 0}), met, "a:Failed", "SuccessCriteriaMet R"),
            (json!({}), failing, "", "Failed R"),
            (json!({"podFailurePolicy": codes}), json!({}), "a:Failed", ""),
            (indexed(json!({"backoffLimitPerIndex": 1})), json!({}), "a:Failed/0+0", ""),
            (
                indexed(json!({"backoffLimitPerIndex": 1, "maxFailedIndexes": 0})),
                json!({}),
                "a:Failed/0+1",
                "FailureTarget MaxFailedIndexesExceeded",
            ),
            (
                indexed(json!({"backoffLimitPerIndex": 1})),
                json!({"completedIndexes": "1-3"}),
                "a:Failed/0+1",
                "FailureTarget FailedIndexes",
            ),
            (
                indexed(json!({"successPolicy": {"rules": [{"succeededCount": 2}]}})),
                json!({"completedIndexes": "1"}),
                "a:Succeeded/0 b:Running/2",
                "SuccessCriteriaMet SuccessPolicy",
            ),
        ];
        for (spec, status, line, want) in rows {
            let a = look(&job(&spec, &status), &pods(line));
            assert_eq!(target(&a), want, "{spec} {status} {line}");
        }
    }

    #[test]
    fn a_deadline_is_waited_for() {
        let j = job(&json!({"activeDeadlineSeconds": 100}), &json!({}));
        let a = look_at(&j, &[], "2026-01-01T00:00:30Z".parse().unwrap());
        assert_eq!(a.deadline_in, Some(Duration::from_secs(70)));
    }

    #[test]
    fn restarts_in_place_count() {
        let seen = |n: i32| {
            let mut p = pods("a:Running").remove(0);
            let status = json!({"phase": "Running", "containerStatuses": [{"restartCount": n}],
                "initContainerStatuses": [{"restartCount": 1}]});
            let mut view = (*p.pod).clone();
            view.status = serde_json::from_value(status).unwrap();
            p.pod = std::sync::Arc::new(view);
            vec![p]
        };
        for (limit, restarts, in_place, want) in
            [(3, 2, true, true), (3, 1, true, false), (3, 2, false, false), (0, 0, true, true)]
        {
            let (j, pods) = (job(&json!({"backoffLimit": limit}), &json!({})), seen(restarts));
            let (released, failures) = (HashSet::new(), Failures::default());
            let now = crate::job::sample::now();
            let look = Look { job: &j, pods: &pods, released: &released, failures, restarts_in_place: in_place, now };
            assert_eq!(assess(&look).target.is_some(), want, "{limit} {restarts}");
        }
    }

    #[test]
    fn completion() {
        let now = crate::job::sample::now();
        for (spec, succeeded, active, want) in [
            (json!({}), 1, 0, true),
            (json!({}), 1, 1, false),
            (json!({}), 0, 0, false),
            (json!({"completions": 2}), 1, 0, false),
            (json!({"completions": 2}), 2, 0, true),
            (json!({"completions": 0}), 0, 0, true),
        ] {
            let got = completed(&job(&spec, &json!({})), succeeded, active, now);
            assert_eq!(got.is_some(), want, "{spec} {succeeded} {active}");
        }
    }

    #[test]
    fn suspension_moves_the_start() {
        let now = crate::job::sample::now();
        let mut held = job(&json!({"suspend": true}), &json!({}));
        let mut status = held.status.clone();
        assert_eq!(note_suspension(&held, &mut status, now).map(|e| e.0), Some("Suspended"));
        assert_eq!(status.start_time, None);
        assert_eq!(note_suspension(&held, &mut status, now), None);
        held.spec.suspend = Some(false);
        assert_eq!(note_suspension(&held, &mut status, now).map(|e| e.0), Some("Resumed"));
        assert_eq!(status.start_time.as_deref(), Some("2026-01-01T01:00:00Z"));
        assert_eq!(note_suspension(&held, &mut JobStatus::default(), now), None, "never was suspended");
    }
}
