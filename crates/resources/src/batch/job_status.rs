//! What may be written into a job's status.
use std::collections::HashSet;

use serde_json::Value;

use super::policies::{common_index, count_indexes};
use crate::path::{Errors, Path};
use crate::rules;
use crate::tree::{int, int0, items, present, text};

/// Whether a condition of this type is true.
pub(super) fn condition(obj: &Value, kind: &str) -> bool {
    items(&obj["status"]["conditions"]).iter().any(|c| text(&c["type"]) == kind && text(&c["status"]) == "True")
}

/// Checks what a writer of the status says.
pub(super) fn check(new: &Value, old: &Value, e: &mut Errors) {
    let (s, p) = (&new["status"], Path::new("status"));
    for f in ["active", "succeeded", "failed", "ready", "terminating"] {
        rules::not_negative(&s[f], &p.child(f), e);
    }
    let at = p.child("conditions");
    let both = [
        ("Complete", "Failed", "cannot set Complete=True and Failed=true conditions"),
        ("Complete", "FailureTarget", "cannot set Complete=True and FailureTarget=true conditions"),
        ("SuccessCriteriaMet", "Failed", "cannot set SuccessCriteriaMet=True and Failed=true conditions"),
        ("SuccessCriteriaMet", "FailureTarget", "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"),
    ];
    for (a, b, why) in both {
        if condition(new, a) && condition(new, b) {
            e.invalid(&at, &s["conditions"], why);
        }
    }
    for (end, interim) in [("Failed", "FailureTarget"), ("Complete", "SuccessCriteriaMet")] {
        if condition(new, end) && !condition(old, end) && !condition(new, interim) {
            let why = format!("cannot set {end}=True condition without the {interim}=true condition");
            e.invalid(&at, &s["conditions"], why);
        }
    }
    uncounted(&s["uncountedTerminatedPods"], &p.child("uncountedTerminatedPods"), e);
    indexes(new, old, &p, e);
    let complete = condition(new, "Complete");
    let finished = complete || condition(new, "Failed");
    if present(&s["completionTime"]) && !complete {
        e.invalid(
            &p.child("completionTime"),
            &s["completionTime"],
            "cannot set completionTime when there is no Complete=True condition",
        );
    }
    if complete && !present(&s["completionTime"]) {
        e.required(&p.child("completionTime"), "completionTime is required for Complete jobs");
    }
    if finished && int0(&s["active"]) > 0 {
        e.invalid(&p.child("active"), int0(&s["active"]), "active>0 is invalid for finished job");
    }
    let ends = finished && !condition(old, "Complete") && !condition(old, "Failed");
    if ends && int0(&s["terminating"]) > 0 {
        e.invalid(&p.child("terminating"), int0(&s["terminating"]), "terminating>0 is invalid for finished job");
    }
    let left = &s["uncountedTerminatedPods"];
    if ends && !(items(&left["succeeded"]).is_empty() && items(&left["failed"]).is_empty()) {
        e.invalid(&p.child("uncountedTerminatedPods"), left, "must be empty for finished job");
    }
    if finished && !present(&s["startTime"]) {
        e.required(&p.child("startTime"), "startTime is required for finished job");
    }
    if int0(&s["ready"]) > int0(&s["active"]) {
        e.invalid(&p.child("ready"), int0(&s["ready"]), "cannot set more ready pods than active");
    }
    for kind in ["Complete", "Failed"] {
        if condition(old, kind) && !condition(new, kind) {
            e.invalid(&at, &s["conditions"], format!("cannot unset {kind}=True condition"));
        }
    }
}

/// UIDs stand in one of the lists, once.
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

/// Indexes that changed can be read, and are of a job that has them.
fn indexes(new: &Value, old: &Value, p: &Path<'_>, e: &mut Errors) {
    let (spec, s) = (&new["spec"], &new["status"]);
    let (completed, failed) = (text(&s["completedIndexes"]), s["failedIndexes"].as_str());
    let changed = |f: &str| s[f] != old["status"][f];
    let Some(completions) = int(&spec["completions"]) else { return };
    let at = p.child("completedIndexes");
    if changed("completedIndexes") {
        if let Err(why) = count_indexes(completed, completions) {
            e.invalid(&at, completed, format!("error parsing completedIndexes: {why}"));
        }
        if !completed.is_empty() && text(&spec["completionMode"]) != "Indexed" {
            e.invalid(&at, completed, "cannot set non-empty completedIndexes when non-indexed completion mode");
        }
    }
    let Some(failed) = failed.filter(|_| changed("failedIndexes") || changed("completedIndexes")) else { return };
    let at = p.child("failedIndexes");
    if !present(&spec["backoffLimitPerIndex"]) {
        e.invalid(&at, failed, "cannot set non-null failedIndexes when backoffLimitPerIndex is null");
    }
    if let Err(why) = count_indexes(failed, completions) {
        e.invalid(&at, failed, format!("error parsing failedIndexes: {why}"));
    } else if let Some(i) = common_index(completed, failed) {
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
    }
}
