//! Validates updates of jobs.
use serde_json::Value;

use super::job_status::condition;
use crate::metadata::immutable;
use crate::path::{Errors, Path};
use crate::tree::{ensure, flag, int0, items, present, restore, same, text};

/// Checks which fields of a job's spec may change, and when.
pub(super) fn check_spec_update(new: &Value, old: &Value, e: &mut Errors) {
    let p = Path::new("spec");
    let (n, o) = (&new["spec"], &old["spec"]);
    if !same(&n["completions"], &o["completions"]) {
        // Indexed jobs scale elastically: completions and parallelism change together (KEP-3715).
        let elastic = text(&n["completionMode"]) == "Indexed"
            && present(&n["completions"])
            && present(&o["completions"])
            && n["completions"] == n["parallelism"];
        if !elastic {
            let why = if text(&n["completionMode"]) == "Indexed" {
                "can only be modified in tandem with spec.parallelism"
            } else {
                crate::metadata::IMMUTABLE
            };
            e.invalid(&p.child("completions"), &n["completions"], why);
        }
    }
    immutable(&n["selector"], &o["selector"], &p.child("selector"), e);
    let mut before = o["template"].clone();
    let suspended = flag(&o["suspend"])
        && (!present(&old["status"]["startTime"]) || condition(old, "Suspended"))
        && int0(&old["status"]["active"]) == 0;
    if suspended {
        allow_scheduling(&mut before, &n["template"]);
    }
    if flag(&o["suspend"]) {
        allow_resources(&mut before, &n["template"]);
    }
    if flag(&o["suspend"]) {
        // Scheduling fields of a suspended job may change; only the spec of its template is compared.
        let at = p.child("template");
        immutable(&n["template"]["spec"], &before["spec"], &at.child("spec"), e);
    } else {
        immutable(&n["template"], &before, &p.child("template"), e);
    }
    for f in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"] {
        immutable(&n[f], &o[f], &p.child(f), e);
    }
}

/// Allows suspended jobs to change scheduling directives (KEP-2926).
fn allow_scheduling(before: &mut Value, now: &Value) {
    if let Some(m) = ensure(before, "metadata") {
        for f in ["labels", "annotations"] {
            restore(m, &now["metadata"], f);
        }
    }
    let Some(spec) = ensure(before, "spec") else { return };
    for f in ["nodeSelector", "tolerations", "schedulingGates"] {
        restore(spec, &now["spec"], f);
    }
    let node = &now["spec"]["affinity"];
    if (present(node) || present(&spec["affinity"]))
        && let Some(a) = ensure(spec, "affinity")
    {
        restore(a, node, "nodeAffinity");
    }
}

/// Allows suspended jobs to change the resources of their containers (KEP-5440).
fn allow_resources(before: &mut Value, now: &Value) {
    let Some(spec) = ensure(before, "spec") else { return };
    for list in ["containers", "initContainers"] {
        let now = items(&now["spec"][list]);
        if items(&spec[list]).len() != now.len() {
            continue;
        }
        for (c, n) in crate::tree::items_mut(spec, list).zip(now).filter(|(c, n)| c["name"] == n["name"]) {
            restore(c, n, "resources");
        }
    }
}
