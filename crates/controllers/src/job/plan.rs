//! The number of pods that a job needs now, and which are created or deleted. No I/O here (upstream
//! `job_controller.go`, manageJob).
use std::time::Duration;

use jiff::Timestamp;

use super::assess::{Assessment, IndexState, number};
use super::backoff;
use super::pods::{self, JobPod};
use super::policies;
use crate::views::JobView;

/// The maximum number of pods created or deleted in one sync.
pub const BURST_MAX: usize = 500;

/// A pod to create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewPod {
    /// The completion index in an indexed job.
    pub index: Option<u32>,
    /// The failures of the index so far, counted and ignored. `None` without `backoffLimitPerIndex`.
    pub failures: Option<(u32, u32)>,
}

/// The changes to the job's pods.
#[derive(Clone, Debug)]
pub enum Plan {
    Hold,
    Delete(Vec<JobPod>),
    Create(Vec<NewPod>),
    /// Wait for the back-off of replacements.
    Wait(Duration),
}

/// Returns the changes to the pods of an unfinished job.
pub fn plan(job: &JobView, all: &[JobPod], a: &Assessment, now: Timestamp) -> Plan {
    let indexed = a.indexes.as_ref().map(|s| s.completions);
    if job.is_suspended() {
        return Plan::Delete(pods::surplus(&a.active, indexed, a.active.len()));
    }
    let active = number(a.active.len());
    let parallelism = job.spec.parallelism.unwrap_or(1);
    let wanted = match job.spec.completions {
        None if a.succeeded > 0 => active,
        None => parallelism,
        Some(n) => n.saturating_sub(a.succeeded).min(parallelism).max(0),
    };
    let too_many = usize::try_from(active - wanted).unwrap_or(0);
    let mut surplus = pods::surplus(&a.active, indexed, too_many);
    if !surplus.is_empty() {
        surplus.truncate(BURST_MAX);
        return Plan::Delete(surplus);
    }
    let leaving = if job.replaces_only_failed() { a.terminating } else { 0 };
    let missing = usize::try_from(wanted.saturating_sub(leaving).saturating_sub(active)).unwrap_or(0);
    if missing == 0 {
        return Plan::Hold;
    }
    if job.spec.backoff_limit_per_index.is_none() {
        let wait = a.failures.wait(now);
        if !wait.is_zero() {
            return Plan::Wait(wait);
        }
    }
    let missing = missing.min(BURST_MAX);
    match &a.indexes {
        None => Plan::Create(vec![NewPod::default(); missing]),
        Some(state) => plan_indexes(job, all, a, state, missing, now),
    }
}

fn plan_indexes(
    job: &JobView,
    all: &[JobPod],
    a: &Assessment,
    state: &IndexState,
    missing: usize,
    now: Timestamp,
) -> Plan {
    let mut taken = state.succeeded.with(pods::indexes_of(&a.active));
    if job.replaces_only_failed() {
        taken = taken.with(pods::indexes_of(all.iter().filter(|p| p.is_terminating())));
    }
    if let Some(failed) = &state.failed {
        taken = taken.union(failed);
    }
    let pending = taken.first_missing(missing, state.completions);
    if state.failed.is_none() {
        return Plan::Create(pending.into_iter().map(|i| NewPod { index: Some(i), failures: None }).collect());
    }
    let (mut new, mut shortest) = (Vec::new(), None::<Duration>);
    for index in pending {
        let last = state.to_replace.get(&index);
        let wait =
            last.map_or(Duration::ZERO, |p| backoff::wait_of_index(&p.pod, p.all_before().saturating_add(1), now));
        if wait.is_zero() {
            new.push(NewPod { index: Some(index), failures: Some(last.map_or((0, 0), |p| failures_after(job, p))) });
        } else {
            shortest = Some(shortest.map_or(wait, |s| s.min(wait)));
        }
    }
    match shortest {
        Some(wait) if new.is_empty() => Plan::Wait(wait),
        _ => Plan::Create(new),
    }
}

/// Returns the failures of an index including this pod, counted and ignored.
fn failures_after(job: &JobView, last: &JobPod) -> (u32, u32) {
    let (counted, ignored) = (last.failures_before(), last.ignored_before());
    if policies::judge(job.spec.pod_failure_policy.as_ref(), &last.pod).counts() {
        (counted.saturating_add(1), ignored)
    } else {
        (counted, ignored.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::sample::{job, look_at, now, pods, uids};
    use serde_json::{Value, json};

    fn words(p: &Plan) -> String {
        match p {
            Plan::Hold => "hold".to_owned(),
            Plan::Wait(d) => format!("wait {}", d.as_secs()),
            Plan::Delete(pods) => format!("delete {}", uids(pods)),
            Plan::Create(new) => {
                let one = |n: &NewPod| match (n.index, n.failures) {
                    (None, _) => ".".to_owned(),
                    (Some(i), None) => i.to_string(),
                    (Some(i), Some((counted, ignored))) => format!("{i}+{counted}+{ignored}"),
                };
                format!("create {}", new.iter().map(one).collect::<Vec<_>>().join(","))
            }
        }
    }

    fn check(spec: &Value, status: &Value, line: &str, at: Timestamp, want: &str) {
        let (j, all) = (job(spec, status), pods(line));
        assert_eq!(words(&plan(&j, &all, &look_at(&j, &all, at), at)), want, "{spec} {status} {line}");
    }

    #[test]
    fn how_many() {
        let none = json!({});
        let rows = [
            (json!({}), json!({}), "", "create .,."),
            (json!({}), json!({}), "a:Running", "create ."),
            (json!({}), json!({}), "a:Running b:Succeeded", "hold"),
            (json!({"completions": 5}), json!({"succeeded": 4}), "", "create ."),
            (json!({"completions": 5}), json!({"succeeded": 4}), "a:Running b:Pending", "delete b"),
            (json!({"completions": 5}), json!({"succeeded": 5}), "a:Running", "delete a"),
            (json!({"parallelism": 0}), json!({}), "a:Running", "delete a"),
            (json!({"suspend": true}), json!({}), "a:Running b:Succeeded", "delete a"),
            (json!({}), json!({}), "a:Running b:Running!", "create ."),
            (json!({"podReplacementPolicy": "Failed"}), json!({}), "a:Running b:Running!", "hold"),
            (json!({"parallelism": 3, "podReplacementPolicy": "Failed"}), json!({}), "b:Running!", "create .,."),
        ];
        for (spec, status, line, want) in rows {
            check(&spec, &status, line, now(), want);
        }
        let many = job(&json!({"parallelism": 3000}), &none);
        let Plan::Create(new) = plan(&many, &[], &look_at(&many, &[], now()), now()) else { panic!("nothing made") };
        assert_eq!(new.len(), BURST_MAX);
    }

    #[test]
    fn which_indexes() {
        let spec = |more: Value| {
            let mut spec = json!({"completionMode": "Indexed", "completions": 5, "parallelism": 3});
            for (k, v) in more.as_object().unwrap() {
                spec[k] = v.clone();
            }
            spec
        };
        let limit = json!({"backoffLimitPerIndex": 1});
        let rows = [
            (json!({}), json!({}), "", "create 0,1,2"),
            (json!({}), json!({"completedIndexes": "0,2"}), "a:Running/1", "create 3,4"),
            (json!({}), json!({}), "a:Running/1 b:Pending/1 c:Running/0 d:Running/2", "delete b"),
            (json!({}), json!({"completedIndexes": "0-3"}), "a:Running/4 b:Running/9", "delete b"),
            (json!({}), json!({}), "a:Running!/0", "create 0,1,2"),
            (json!({"podReplacementPolicy": "Failed"}), json!({}), "a:Running!/0", "create 1,2"),
            (limit.clone(), json!({"failedIndexes": "1"}), "", "create 0+0+0,2+0+0,3+0+0"),
            (limit, json!({"completedIndexes": "1-4"}), "a:Failed/0+0", "create 0+1+0"),
        ];
        for (more, status, line, want) in rows {
            check(&spec(more), &status, line, now(), want);
        }
    }

    #[test]
    fn replacements_wait() {
        // The pods were created at midnight and have no termination time, so they count as failed at midnight.
        let at = |s: i64| "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + jiff::SignedDuration::from_secs(s);
        let none = json!({});
        check(&none, &none, "a:Failed b:Failed", at(5), "wait 15");
        check(&none, &none, "a:Failed b:Failed", at(20), "create .,.");
        let spec = json!({"completionMode": "Indexed", "completions": 2, "backoffLimitPerIndex": 5});
        check(&spec, &none, "a:Failed/0+1 b:Failed/1", at(5), "wait 5");
        check(&spec, &none, "a:Failed/0+1 b:Failed/1", at(12), "create 1+1+0");
    }
}
