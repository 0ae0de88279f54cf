//! Jobs and pods for tests, in a short notation.
use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::assess::{Assessment, Look, assess};
use super::backoff::Failures;
use super::pods::{COMPLETION_INDEX, INDEX_FAILURES, JobPod, TRACKING_FINALIZER};
use crate::views::JobView;

/// The time of tests, which is long after all events, so that nothing waits for a back-off.
pub(super) fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

/// Returns a job that started at midnight.
pub(super) fn job(spec: &Value, status: &Value) -> JobView {
    let mut j = json!({"metadata": {"name": "j", "namespace": "n", "uid": "u", "generation": 1},
        "spec": {"backoffLimit": 6, "parallelism": 2}, "status": {"startTime": "2026-01-01T00:00:00Z"}});
    for (part, change) in [("spec", spec), ("status", status)] {
        for (k, v) in change.as_object().into_iter().flatten() {
            j[part][k] = v.clone();
        }
    }
    serde_json::from_value(j).unwrap()
}

/// Pods in one line: `a:Failed b:Running/1 c:Succeeded- d:Running! e:Failed/0+2` — UID and phase, then `/` the index, `+`
/// failures before, `-` without the finalizer, `!` going, `*` ready.
pub(super) fn pods(line: &str) -> Vec<JobPod> {
    line.split_whitespace().map(pod).collect()
}

fn pod(text: &str) -> JobPod {
    let (uid, rest) = text.split_once(':').unwrap();
    let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
    let (phase, marks) = rest.split_at(end);
    let after = |mark: char| {
        let at = marks.find(mark)? + 1;
        let end = marks[at..].find(|c: char| !c.is_ascii_digit()).map_or(marks.len(), |e| at + e);
        Some(marks[at..end].to_owned())
    };
    let mut p = json!({"metadata": {"name": uid, "uid": uid, "namespace": "n", "annotations": {},
        "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": "n1"}, "status": {"phase": phase}});
    if let Some(i) = after('/') {
        p["metadata"]["annotations"][COMPLETION_INDEX] = json!(i);
    }
    if let Some(n) = after('+') {
        p["metadata"]["annotations"][INDEX_FAILURES] = json!(n);
    }
    if !marks.contains('-') {
        p["metadata"]["finalizers"] = json!([TRACKING_FINALIZER]);
    }
    if marks.contains('!') {
        p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:30:00Z");
    }
    if marks.contains('*') {
        p["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    }
    JobPod::new(Arc::new(serde_json::from_value(p).unwrap()))
}

/// Assesses a job without state from earlier syncs.
pub(super) fn look(job: &JobView, pods: &[JobPod]) -> Assessment {
    look_at(job, pods, now())
}

/// Like [`look`], at another time.
pub(super) fn look_at(job: &JobView, pods: &[JobPod], now: Timestamp) -> Assessment {
    let (released, failures) = (HashSet::new(), Failures::default());
    assess(&Look { job, pods, released: &released, failures, restarts_in_place: false, now })
}

/// Returns the sorted UIDs as one string.
pub(super) fn uids<'a>(all: impl IntoIterator<Item = &'a JobPod>) -> String {
    let mut uids: Vec<&str> = all.into_iter().map(JobPod::uid).collect();
    uids.sort_unstable();
    uids.concat()
}
