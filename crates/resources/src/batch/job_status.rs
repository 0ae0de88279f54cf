//! Validates a job's status.
use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::Value;

use super::policies::{common_index, count_indexes};
use crate::path::{Errors, Path};
use crate::rules;
use crate::tree::{int, int0, items, present, text};

/// Reports whether a condition of this type is true.
pub(super) fn condition(obj: &Value, kind: &str) -> bool {
    items(&obj["status"]["conditions"]).iter().any(|c| text(&c["type"]) == kind && text(&c["status"]) == "True")
}

/// The old and the new object. A rule is checked only if its fields have changed: a user's change of the spec may make
/// the status invalid until the controller has updated it, and other writes must not fail because of that.
struct Changed<'a> {
    new: &'a Value,
    old: &'a Value,
}

impl Changed<'_> {
    fn field(&self, name: &str) -> bool {
        let shown = |o: &Value| Some(o["status"][name].clone()).filter(|v| !v.is_null());
        shown(self.new) != shown(self.old)
    }
    fn count(&self, name: &str) -> bool {
        int0(&self.new["status"][name]) != int0(&self.old["status"][name])
    }
    fn is(&self, kind: &str) -> bool {
        condition(self.new, kind) != condition(self.old, kind)
    }
    fn finished(&self) -> bool {
        finished(self.new) != finished(self.old)
    }
}

fn finished(obj: &Value) -> bool {
    condition(obj, "Complete") || condition(obj, "Failed")
}

/// Validates an update of the status (upstream `ValidateJobStatusUpdate`, with `JobManagedBy` on).
pub(super) fn check(new: &Value, old: &Value, e: &mut Errors) {
    let (s, p) = (&new["status"], Path::new("status"));
    for f in ["active", "succeeded", "failed", "ready", "terminating"] {
        rules::not_negative(&s[f], &p.child(f), e);
    }
    let changed = Changed { new, old };
    uncounted(&s["uncountedTerminatedPods"], &p.child("uncountedTerminatedPods"), e);
    conditions(&changed, &p.child("conditions"), e);
    indexes(&changed, &p, e);
    times(&changed, &p, e);
    counts(&changed, &p, e);
}

/// Checks which conditions may exist together, and which must not be removed.
fn conditions(changed: &Changed<'_>, at: &Path<'_>, e: &mut Errors) {
    let (new, old) = (changed.new, changed.old);
    let is = |kind: &str| condition(new, kind);
    let both = [
        ("Complete", "Failed", changed.is("Complete") || changed.is("Failed")),
        ("Complete", "FailureTarget", changed.is("Complete") || changed.is("FailureTarget")),
        ("SuccessCriteriaMet", "Failed", true),
        ("SuccessCriteriaMet", "FailureTarget", true),
    ];
    for (a, b, asked) in both {
        if asked && is(a) && is(b) {
            e.invalid_unseen(at, format!("cannot set {a}=True and {b}=true conditions"));
        }
    }
    let interim = [
        ("Failed", "FailureTarget", changed.is("Failed") || changed.field("failedIndexes")),
        ("Complete", "SuccessCriteriaMet", changed.is("Complete") || changed.is("SuccessCriteriaMet")),
    ];
    for (end, before, asked) in interim {
        if asked && is(end) && !is(before) {
            e.invalid_unseen(at, format!("cannot set {end}=True condition without the {before}=true condition"));
        }
    }
    if present(&new["spec"]["successPolicy"]) && is("Complete") && !is("SuccessCriteriaMet") {
        e.invalid_unseen(at, "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True");
    }
    for (kind, why) in [
        ("Failed", "cannot disable the terminal Failed=True condition"),
        ("Complete", "cannot disable the terminal Complete=True condition"),
        ("FailureTarget", "cannot disable the terminal FailureTarget=True condition"),
        ("SuccessCriteriaMet", "cannot disable the SuccessCriteriaMet=True condition"),
    ] {
        if condition(old, kind) && !is(kind) {
            e.invalid_unseen(at, why);
        }
    }
    if condition(old, "Complete") && !condition(old, "SuccessCriteriaMet") && is("SuccessCriteriaMet") {
        e.invalid_unseen(at, "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions");
    }
}

/// Checks start time and completion time.
fn times(changed: &Changed<'_>, p: &Path<'_>, e: &mut Errors) {
    let (new, old, s) = (changed.new, changed.old, &changed.new["status"]);
    let complete = condition(new, "Complete");
    let (began, ended) = (changed.field("startTime"), changed.field("completionTime"));
    let at = p.child("completionTime");
    if changed.is("Complete") || ended {
        if present(&s["completionTime"]) && !complete {
            let why = "cannot set completionTime when there is no Complete=True condition";
            e.invalid(&at, &s["completionTime"], why);
        } else if complete && !present(&s["completionTime"]) {
            e.required(&at, "completionTime is required for Complete jobs");
        }
    }
    let time = |v: &Value| text(v).parse::<Timestamp>().ok();
    if (began || ended)
        && let (Some(from), Some(to)) = (time(&s["startTime"]), time(&s["completionTime"]))
        && to < from
    {
        e.invalid(&at, &s["completionTime"], "must be equal to or after `startTime`");
    }
    let was = &old["status"]["completionTime"];
    if present(was) && present(&s["completionTime"]) && ended {
        e.invalid(&at, &s["completionTime"], "field is immutable");
    }
    let suspended = |o: &Value, status: &str| {
        items(&o["status"]["conditions"])
            .iter()
            .any(|c| text(&c["type"]) == "Suspended" && text(&c["status"]) == status)
    };
    let resumes = suspended(old, "True") && suspended(new, "False");
    let begun = &old["status"]["startTime"];
    if began && !resumes && present(begun) && new["spec"]["suspend"] != true {
        e.invalid(&p.child("startTime"), &s["startTime"], "field is immutable for unsuspended job once set");
    }
    let never_runs = new["spec"]["suspend"] == true && new["spec"]["completions"] == 0;
    if (changed.finished() || began) && !never_runs && finished(new) && !present(&s["startTime"]) {
        e.required(&p.child("startTime"), "startTime is required for finished job");
    }
}

/// Checks the numbers of pods.
fn counts(changed: &Changed<'_>, p: &Path<'_>, e: &mut Errors) {
    let (new, old, s) = (changed.new, changed.old, &changed.new["status"]);
    let done = finished(new);
    let ends = changed.finished();
    for (field, asked) in
        [("active", ends || changed.count("active")), ("terminating", ends || changed.field("terminating"))]
    {
        if asked && done && int0(&s[field]) > 0 {
            e.invalid(&p.child(field), int0(&s[field]), format!("{field}>0 is invalid for finished job"));
        }
    }
    let left = &s["uncountedTerminatedPods"];
    let any_left = !(items(&left["succeeded"]).is_empty() && items(&left["failed"]).is_empty());
    if (ends || changed.field("uncountedTerminatedPods")) && done && any_left {
        e.invalid(&p.child("uncountedTerminatedPods"), left, "must be empty for finished job");
    }
    if (changed.field("ready") || changed.count("active")) && int0(&s["ready"]) > int0(&s["active"]) {
        e.invalid(&p.child("ready"), int0(&s["ready"]), "cannot set more ready pods than active");
    }
    // If both are equal they can be scaled down together, which removes finished indexes.
    let spec = &new["spec"];
    let scales = text(&spec["completionMode"]) == "Indexed" && int(&spec["completions"]) == int(&spec["parallelism"]);
    for (field, asked) in [("succeeded", !scales), ("failed", true)] {
        if asked && int0(&s[field]) < int0(&old["status"][field]) {
            e.invalid(&p.child(field), int0(&s[field]), format!("cannot decrease the {field} counter"));
        }
    }
}

/// Checks that each UID is in one of the lists, once.
fn uncounted(pods: &Value, p: &Path<'_>, e: &mut Errors) {
    let mut seen = HashSet::new();
    for list in ["succeeded", "failed"] {
        let at = p.child(list);
        for (i, uid) in items(&pods[list]).iter().enumerate() {
            if text(uid).is_empty() {
                e.invalid(&at.index(i), uid, "must not be empty");
            } else if !seen.insert(text(uid)) {
                e.duplicate(&at.index(i), uid);
            }
        }
    }
}

/// Checks that changed indexes are valid, and that the job is indexed.
fn indexes(changed: &Changed<'_>, p: &Path<'_>, e: &mut Errors) {
    let (spec, s) = (&changed.new["spec"], &changed.new["status"]);
    let (completed, failed) = (text(&s["completedIndexes"]), s["failedIndexes"].as_str());
    let completions = int(&spec["completions"]);
    let at = p.child("completedIndexes");
    if changed.field("completedIndexes") {
        if let Some(Err(why)) = completions.map(|n| count_indexes(completed, n)) {
            e.invalid(&at, completed, format!("error parsing completedIndexes: {why}"));
        }
        if !completed.is_empty() && text(&spec["completionMode"]) != "Indexed" {
            e.invalid(&at, completed, "cannot set non-empty completedIndexes when non-indexed completion mode");
        }
    }
    let Some(failed) = failed else { return };
    let at = p.child("failedIndexes");
    let readable = completions.map(|n| count_indexes(failed, n));
    if changed.field("failedIndexes") {
        if !present(&spec["backoffLimitPerIndex"]) {
            e.invalid(&at, failed, "cannot set non-null failedIndexes when backoffLimitPerIndex is null");
        } else if let Some(Err(why)) = &readable {
            e.invalid(&at, failed, format!("error parsing failedIndexes: {why}"));
        }
    }
    let asked = changed.field("failedIndexes") || changed.field("completedIndexes");
    if asked
        && readable.is_some_and(|r| r.is_ok())
        && let Some(i) = common_index(completed, failed)
    {
        e.invalid(&at, failed, format!("failedIndexes and completedIndexes overlap at index: {i}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check_one(spec: &Value, status: &Value, old: &Value, want: &str) {
        let mut e = Errors::default();
        check(&json!({"spec": spec, "status": status}), &json!({"spec": spec, "status": old}), &mut e);
        let got = e.finish().to_string();
        assert!(if want.is_empty() { got == "[]" } else { got.contains(want) }, "{spec} {status}: {got}");
    }

    #[test]
    fn statuses() {
        let indexed = json!({"completionMode": "Indexed", "completions": 5, "backoffLimitPerIndex": 1});
        let plain = json!({"completions": 5});
        let none = json!({});
        let is = |kinds: &[&str]| {
            let all: Vec<Value> = kinds.iter().map(|k| json!({"type": k, "status": "True"})).collect();
            json!({"conditions": all, "startTime": "2026-01-01T00:00:00Z"})
        };
        check_one(&plain, &json!({"uncountedTerminatedPods": {"succeeded": ["a"], "failed": ["b"]}}), &none, "");
        check_one(
            &plain,
            &json!({"uncountedTerminatedPods": {"succeeded": ["a"], "failed": ["a"]}}),
            &none,
            "uncountedTerminatedPods.failed[0]",
        );
        check_one(&plain, &is(&["FailureTarget", "Failed"]), &none, "");
        check_one(&plain, &is(&["Failed"]), &none, "without the FailureTarget=true condition");
        check_one(&plain, &is(&["Failed"]), &is(&["Failed"]), "");
        let mut left = is(&["FailureTarget", "Failed"]);
        left["uncountedTerminatedPods"] = json!({"failed": ["a"]});
        check_one(&plain, &left, &none, "must be empty for finished job");
        check_one(&indexed, &json!({"completedIndexes": "0-2,4"}), &none, "");
        check_one(&indexed, &json!({"completedIndexes": "7"}), &none, "error parsing completedIndexes");
        check_one(&plain, &json!({"completedIndexes": "1"}), &none, "non-indexed completion mode");
        check_one(&indexed, &json!({"completedIndexes": "0-2", "failedIndexes": "3"}), &none, "");
        check_one(&indexed, &json!({"completedIndexes": "0-2", "failedIndexes": "2-3"}), &none, "overlap at index: 2");
        check_one(&plain, &json!({"failedIndexes": "1"}), &none, "when backoffLimitPerIndex is null");
        check_one(&indexed, &json!({"failedIndexes": "7", "active": 1}), &json!({"failedIndexes": "7"}), "");
    }

    #[test]
    fn what_was_counted_and_decided_stays() {
        let plain = json!({"completions": 5, "parallelism": 5});
        let elastic = json!({"completions": 5, "parallelism": 5, "completionMode": "Indexed"});
        let three = json!({"succeeded": 3, "failed": 3});
        check_one(&plain, &json!({"succeeded": 2, "failed": 3}), &three, "cannot decrease the succeeded counter");
        check_one(&elastic, &json!({"succeeded": 2, "failed": 3}), &three, "");
        check_one(&elastic, &json!({"succeeded": 3, "failed": 2}), &three, "cannot decrease the failed counter");
        let of = |kinds: &[(&str, &str)], rest: Value| {
            let all: Vec<Value> = kinds.iter().map(|(k, s)| json!({"type": k, "status": s})).collect();
            let mut status = rest;
            status["conditions"] = json!(all);
            status
        };
        let met = of(&[("SuccessCriteriaMet", "True")], json!({}));
        check_one(&plain, &json!({}), &met, "cannot disable the SuccessCriteriaMet=True condition");
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z");
        let ends = [("SuccessCriteriaMet", "True"), ("Complete", "True")];
        let done = |from: &str, to: &str| of(&ends, json!({"startTime": from, "completionTime": to}));
        check_one(&plain, &done(early, late), &json!({"startTime": early}), "");
        check_one(&plain, &done(late, early), &json!({"startTime": late}), "must be equal to or after `startTime`");
        check_one(&plain, &done(early, early), &done(early, late), "field is immutable");
        check_one(&plain, &json!({"startTime": late}), &json!({"startTime": early}), "immutable for unsuspended job");
        check_one(&plain, &json!({}), &json!({"startTime": early}), "immutable for unsuspended job");
        let resumed = of(&[("Suspended", "False")], json!({"startTime": late}));
        check_one(&plain, &resumed, &of(&[("Suspended", "True")], json!({"startTime": early})), "");
        let of_policy = json!({"completions": 5, "completionMode": "Indexed", "successPolicy": {"rules": []}});
        let complete = of(&[("Complete", "True")], json!({"startTime": early, "completionTime": late}));
        check_one(&of_policy, &complete, &complete, "unless SuccessCriteriaMet=True");
        check_one(&plain, &complete, &complete, "");
    }
}
