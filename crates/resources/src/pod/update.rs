//! Validates updates of pods: through the main resource, `ephemeralcontainers` and `resize`.
use std::fmt::Write as _;

use serde_json::Value;

use super::validate::{self, MIRROR};
use crate::path::{Errors, Path};
use crate::tree::{entries, int, items, items_mut, present, remove, restore, same, set, text};

const UPDATABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
/// The maximum number of lines of difference in an error.
const DIFF_LINES_MAX: usize = 20;

/// Restores everything, including status and system metadata, except managedFields.
pub(super) fn keep_all_but(new: &mut Value, old: &Value) {
    let managed = new["metadata"]["managedFields"].clone();
    for k in ["spec", "status"] {
        restore(new, old, k);
    }
    restore(new, old, "metadata");
    let version = &old["metadata"]["resourceVersion"];
    if let Some(meta) = new.get_mut("metadata") {
        if present(&managed) {
            set(meta, "managedFields", managed);
        }
        if present(version) {
            set(meta, "resourceVersion", version.clone());
        }
    }
}

/// Restores annotations that the API server uses, which are fixed when the pod is created.
pub(super) fn own_annotations(new: &Value, old: &Value, p: &Path<'_>, e: &mut Errors) {
    const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
    let (now, was) = (&new["metadata"]["annotations"], &old["metadata"]["annotations"]);
    let keys = entries(was).chain(entries(now).filter(|(k, _)| was.get(k.as_str()).is_none()));
    for (k, _) in keys.filter(|(k, _)| now.get(k.as_str()) != was.get(k.as_str())) {
        let change = if was.get(k.as_str()).is_some() { "remove or update" } else { "add" };
        if k.starts_with(APP_ARMOR) {
            e.forbidden(&p.key(k), format!("may not {change} AppArmor annotations"));
        } else if k == MIRROR {
            e.forbidden(&p.key(k), format!("may not {change} mirror pod annotation"));
        }
    }
    validate::annotations(&new["metadata"], &new["spec"], p, e);
}

/// Validates an update of the main resource (upstream `ValidatePodUpdate`).
pub fn check(new: &Value, old: &Value, e: &mut Errors) {
    validate::pod_and_spec(new, e);
    let meta = Path::new("metadata");
    own_annotations(new, old, &meta.child("annotations"), e);
    let p = Path::new("spec");
    let (n, o) = (&new["spec"], &old["spec"]);
    for list in ["containers", "initContainers"] {
        if items(&n[list]).len() != items(&o[list]).len() {
            return e.forbidden(&p.child(list), "pod updates may not add or remove containers");
        }
    }
    if !deadline(n, o, &p.child("activeDeadlineSeconds"), e) {
        return;
    }
    added_tolerations(n, o, &p.child("tolerations"), e);
    let gates = p.child("schedulingGates");
    let now = items(&n["schedulingGates"]);
    for (i, g) in now.iter().enumerate() {
        // A repeated gate is reported once, at its last position.
        if !items(&o["schedulingGates"]).contains(g) && !now[i + 1..].contains(g) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{}'", text(&g["name"]));
            e.forbidden(&gates.index(i).child("name"), why);
        }
    }
    if same(n, o) {
        return;
    }
    let munged = munge(n, o, e);
    if !same(&munged, o) {
        let mut why = UPDATABLE.to_owned();
        why.push('\n');
        difference("Spec", o, &munged, &mut why);
        e.forbidden(&p, why);
    }
}

fn deadline(n: &Value, o: &Value, p: &Path<'_>, e: &mut Errors) -> bool {
    match (int(&n["activeDeadlineSeconds"]), int(&o["activeDeadlineSeconds"])) {
        (Some(now), _) if !(0..=i64::from(i32::MAX)).contains(&now) => {
            e.invalid(p, now, "must be between 0 and 2147483647, inclusive");
            false
        }
        (Some(now), Some(was)) if was < now => {
            e.invalid(p, now, "must be less than or equal to previous value");
            false
        }
        (None, Some(_)) => {
            e.invalid(p, Value::Null, "must not update from a positive integer to nil value");
            true
        }
        _ => true,
    }
}

fn added_tolerations(n: &Value, o: &Value, p: &Path<'_>, e: &mut Errors) {
    let bare = |t: &Value| {
        let mut t = t.clone();
        remove(&mut t, "tolerationSeconds");
        t
    };
    let (now, was) = (items(&n["tolerations"]), items(&o["tolerations"]));
    if now == was {
        return;
    }
    if !was.iter().all(|old| now.iter().any(|new| bare(new) == bare(old))) {
        e.forbidden(p, "existing toleration can not be modified except its tolerationSeconds");
    }
}

/// Returns the new spec with every mutable field taken from the old one.
fn munge(n: &Value, o: &Value, e: &mut Errors) -> Value {
    let mut m = n.clone();
    for list in ["containers", "initContainers"] {
        for (c, was) in items_mut(&mut m, list).zip(items(&o[list])) {
            restore(c, was, "image");
        }
    }
    for f in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        restore(&mut m, o, f);
    }
    let grace = "terminationGracePeriodSeconds";
    if int(&o[grace]).is_some_and(|g| g < 0) && int(&m[grace]) == Some(1) {
        restore(&mut m, o, grace);
    }
    if !items(&o["schedulingGates"]).is_empty() {
        munge_gated(&mut m, o, e);
    }
    m
}

/// Allows gated pods to narrow their node selector and node affinity (KEP-3838).
fn munge_gated(m: &mut Value, o: &Value, e: &mut Errors) {
    let spec = Path::new("spec");
    if !same(&m["nodeSelector"], &o["nodeSelector"]) {
        let p = spec.child("nodeSelector");
        for (k, v) in entries(&o["nodeSelector"]) {
            if m["nodeSelector"].get(k) != Some(v) {
                e.invalid(&p, &m["nodeSelector"], "only additions are allowed (no mutations or deletions)");
                break;
            }
        }
        restore(m, o, "nodeSelector");
    }
    let required = |s: &Value| {
        s["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].clone()
    };
    let (now, was) = (required(m), required(o));
    if same(&m["affinity"]["nodeAffinity"], &o["affinity"]["nodeAffinity"]) {
        return;
    }
    if !items(&was).is_empty() {
        let a = spec.child("affinity");
        let node = a.child("nodeAffinity");
        let required = node.child("requiredDuringSchedulingIgnoredDuringExecution");
        let terms = required.child("nodeSelectorTerms");
        if items(&now).len() == items(&was).len() {
            for (i, (now, was)) in items(&now).iter().zip(items(&was)).enumerate() {
                if !only_added(now, was) {
                    e.invalid(&terms.index(i), now, "only additions are allowed (no mutations or deletions)");
                }
            }
        } else {
            e.invalid(&terms, &now, "no additions/deletions to non-empty NodeSelectorTerms list are allowed");
        }
    }
    match (m.get_mut("affinity"), &o["affinity"]) {
        (Some(a), old) if a.is_object() => {
            restore(a, old, "nodeAffinity");
            if a.as_object().is_some_and(serde_json::Map::is_empty) {
                remove(m, "affinity");
            }
        }
        _ => restore(m, o, "affinity"),
    }
}

/// Reports whether a term has everything it had, and perhaps more; an empty one, which selects nothing, stays empty.
fn only_added(now: &Value, was: &Value) -> bool {
    let of = |t: &Value, f: &str| items(&t[f]).to_vec();
    let fields = ["matchExpressions", "matchFields"];
    if fields.iter().all(|f| of(was, f).is_empty()) {
        return fields.iter().all(|f| of(now, f).is_empty());
    }
    fields.iter().all(|f| of(now, f).starts_with(&of(was, f)))
}

/// Writes lines `- path: old` and `+ path: new`.
fn difference(path: &str, old: &Value, new: &Value, out: &mut String) {
    if same(old, new) || out.lines().count() > DIFF_LINES_MAX {
        return;
    }
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            for (k, v) in a {
                difference(&format!("{path}.{k}"), v, b.get(k).unwrap_or(&Value::Null), out);
            }
            for (k, v) in b.iter().filter(|(k, _)| !a.contains_key(*k)) {
                difference(&format!("{path}.{k}"), &Value::Null, v, out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (x, y)) in a.iter().zip(b).enumerate() {
                difference(&format!("{path}[{i}]"), x, y, out);
            }
        }
        _ => {
            let _ = write!(out, "- {path}: {old}\n+ {path}: {new}\n");
        }
    }
}

/// Validates an update through `ephemeralcontainers`, which only adds containers.
pub fn check_ephemeral(new: &Value, old: &Value, e: &mut Errors) {
    if old["metadata"]["annotations"].get(MIRROR).is_some() {
        return e.forbidden(&Path::new("[]"), "static pods do not support ephemeral containers");
    }
    validate::pod_and_spec(new, e);
    let spec = Path::new("spec");
    let p = spec.child("ephemeralContainers");
    for was in items(&old["spec"]["ephemeralContainers"]) {
        let name = text(&was["name"]);
        match items(&new["spec"]["ephemeralContainers"]).iter().find(|c| text(&c["name"]) == name) {
            None => e.forbidden(&p, format!("existing ephemeral containers {name:?} may not be removed\n")),
            Some(c) if !same(c, was) => {
                let mut why = format!("existing ephemeral containers {name:?} may not be changed\n");
                difference("EphemeralContainer", was, c, &mut why);
                e.forbidden(&p, why);
            }
            Some(_) => {}
        }
    }
}
