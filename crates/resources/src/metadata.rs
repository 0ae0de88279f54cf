//! Validates `metadata` of every kind (apimachinery `api/validation/objectmeta.go`). The request path sets UID,
//! timestamps and resourceVersion.
use kelson_meta::metadata::common;
pub use kelson_meta::metadata::{ANNOTATIONS_BYTES_MAX, annotations, labels};
use kelson_meta::{FieldErrors, is_dns1123_label, is_qualified_name};
use serde_json::Value;

use crate::names::NameRule;
use crate::options::Options;
use crate::path::{Errors, Path};
use crate::tree::{int, items, present, remove, same, set, text};

/// The message for a changed immutable field.
pub const IMMUTABLE: &str = "field is immutable";

/// Validates a new object's metadata.
pub fn check(o: &Options, meta: &Value, e: &mut Errors) {
    let p = Path::new("metadata");
    check_but_finalizers(o.name, o.namespaced, meta, &p, e);
    finalizers(&meta["finalizers"], &p.child("finalizers"), e);
    if o.rejudged.qualified {
        qualified_finalizers(&meta["finalizers"], &p.child("finalizers"), e);
    }
}

/// Validates the metadata that objects of any kind have: the name is one path segment.
pub fn check_any(o: &Options, meta: &Value, e: &mut Errors) {
    let p = Path::new("metadata");
    check_but_finalizers(NameRule::PathSegment, o.namespaced, meta, &p, e);
    finalizers(&meta["finalizers"], &p.child("finalizers"), e);
}

/// Validates the metadata of a view that is written as a whole, such as a `Scale`; its namespace is the request's.
pub fn check_view(meta: &Value) -> FieldErrors {
    let mut e = Errors::new();
    let p = Path::new("metadata");
    let mut here = meta.clone();
    remove(&mut here, "namespace");
    check_but_finalizers(NameRule::Subdomain, false, &here, &p, &mut e);
    finalizers(&meta["finalizers"], &p.child("finalizers"), &mut e);
    qualified_finalizers(&meta["finalizers"], &p.child("finalizers"), &mut e);
    e.finish()
}

fn check_but_finalizers(rule: NameRule, namespaced: bool, meta: &Value, p: &Path<'_>, e: &mut Errors) {
    names(rule, namespaced, meta, p, e);
    common(meta, p, e);
}

/// Validates names and the generation.
fn names(rule: NameRule, namespaced: bool, meta: &Value, p: &Path<'_>, e: &mut Errors) {
    let generate = text(&meta["generateName"]);
    if !generate.is_empty() {
        e.invalid_each(&p.child("generateName"), generate, rule.check(generate, true));
    }
    let name = text(&meta["name"]);
    if name.is_empty() {
        e.required(&p.child("name"), "name or generateName is required");
    } else {
        e.invalid_each(&p.child("name"), name, rule.check(name, false));
    }
    let namespace = text(&meta["namespace"]);
    if namespaced {
        if namespace.is_empty() {
            e.required(&p.child("namespace"), "");
        } else {
            e.invalid_each(&p.child("namespace"), namespace, is_dns1123_label(namespace));
        }
    } else if !namespace.is_empty() {
        e.forbidden(&p.child("namespace"), "not allowed on this type");
    }
    if let Some(g) = int(&meta["generation"])
        && g < 0
    {
        e.invalid(&p.child("generation"), g, "must be greater than or equal to 0");
    }
}

/// Validates metadata of an update, of the object or of one of its views. Upstream validates metadata as that of a new
/// object of any name and as that of a changed one, and once more with the rules of each kind; each error is returned
/// as many times as upstream returns it.
pub fn check_update(o: &Options, subresource: &str, new: &Value, old: &Value, e: &mut Errors) {
    let p = Path::new("metadata");
    let meta = &new["metadata"];
    let own = if subresource.is_empty() { o.rejudged } else { o.rejudged_in_views };
    let found = |look: &dyn Fn(&mut Errors)| {
        let mut found = Errors::new();
        look(&mut found);
        found.finish()
    };
    let at = p.child("finalizers");
    let list = &meta["finalizers"];
    let any_name = found(&|e| names(NameRule::PathSegment, o.namespaced, meta, &p, e));
    let own_name = found(&|e| {
        if own.new > 0 {
            names(o.name, o.namespaced, meta, &p, e);
        }
    });
    let changed = found(&|e| faults_of_change(meta, &old["metadata"], &p, e));
    let shared = found(&|e| common(meta, &p, e));
    let held = found(&|e| finalizers(list, &at, e));
    let unqualified = found(&|e| {
        if own.qualified {
            qualified_finalizers(list, &at, e);
        }
    });
    if [&any_name, &own_name, &changed, &shared, &held, &unqualified].iter().all(|found| found.is_empty()) {
        return;
    }
    for part in [&any_name, &shared, &held, &changed, &shared] {
        e.extend(part.clone());
    }
    for _ in 0..own.changed {
        [&changed, &shared, &unqualified].into_iter().for_each(|part| e.extend(part.clone()));
    }
    for _ in 0..own.new {
        [&own_name, &shared, &held, &unqualified].into_iter().for_each(|part| e.extend(part.clone()));
    }
}

/// Validates the changes of metadata.
fn faults_of_change(n: &Value, m: &Value, p: &Path<'_>, e: &mut Errors) {
    if present(&m["deletionTimestamp"]) {
        let extra: Vec<&str> =
            items(&n["finalizers"]).iter().map(text).filter(|f| !crate::tree::holds(&m["finalizers"], f)).collect();
        if !extra.is_empty() {
            let list: Vec<String> = extra.iter().map(|s| format!("{s:?}")).collect();
            e.forbidden(
                &p.child("finalizers"),
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    list.join(", ")
                ),
            );
        }
    }
    if text(&n["resourceVersion"]).is_empty() {
        e.invalid(&p.child("resourceVersion"), "", "must be specified for an update");
    }
    if int(&n["generation"]).unwrap_or(0) < int(&m["generation"]).unwrap_or(0) {
        e.invalid(&p.child("generation"), &n["generation"], "must not be decremented");
    }
    for f in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        if n[f] != m[f] && (present(&n[f]) || present(&m[f])) {
            e.invalid(&p.child(f), &n[f], IMMUTABLE);
        }
    }
}

/// Restores fields that an update cannot change: UID, creation and deletion times.
pub fn keep_system_fields(new: &mut Value, old: &Value) {
    let old = &old["metadata"];
    let Some(meta) = crate::tree::ensure(new, "metadata") else { return };
    if text(&meta["uid"]).is_empty()
        && let Some(uid) = old.get("uid")
    {
        set(meta, "uid", uid.clone());
    }
    match old.get("creationTimestamp").filter(|v| present(v)) {
        Some(v) => set(meta, "creationTimestamp", v.clone()),
        None => remove(meta, "creationTimestamp"),
    }
    // An update cannot end a deletion; that it begins one is an error, which comparing old and new finds.
    if present(&old["deletionTimestamp"]) {
        set(meta, "deletionTimestamp", old["deletionTimestamp"].clone());
    }
    if !present(&meta["deletionGracePeriodSeconds"])
        && let Some(v) = old.get("deletionGracePeriodSeconds")
    {
        set(meta, "deletionGracePeriodSeconds", v.clone());
    }
}

/// Reports whether a finalizer is one of those that need no domain.
fn is_standard_finalizer(name: &str) -> bool {
    matches!(name, "orphan" | "foregroundDeletion" | "kubernetes")
}

/// Returns warnings about finalizers that a write adds to a custom resource.
pub fn finalizer_warnings(meta: &Value, old: Option<&Value>) -> Vec<String> {
    const ADVICE: &str = "to avoid accidental conflicts with other finalizer writers";
    let before = old.map(|o| items(&o["finalizers"])).unwrap_or_default();
    let mut added: Vec<&str> = items(&meta["finalizers"]).iter().filter(|f| !before.contains(f)).map(text).collect();
    added.sort_unstable();
    added.dedup();
    let mut out = Vec::new();
    for name in added {
        let reported = |why: &str| format!("metadata.finalizers: {name:?}: {why}");
        out.extend(is_qualified_name(name).err().into_iter().flatten().map(|why| reported(&why)));
        if name.contains('/') || is_standard_finalizer(name) {
            continue;
        }
        let path = if name.contains('.') { " including a path (/)" } else { "" };
        out.push(reported(&format!("prefer a domain-qualified finalizer name{path} {ADVICE}")));
    }
    out
}

fn finalizers(list: &Value, p: &Path<'_>, e: &mut Errors) {
    let (mut orphan, mut foreground) = (false, false);
    for f in items(list).iter().map(text) {
        e.invalid_each(p, f, is_qualified_name(f));
        orphan |= f == "orphan";
        foreground |= f == "foregroundDeletion";
    }
    if orphan && foreground {
        e.invalid(p, list, "finalizer orphan and foregroundDeletion cannot be both set");
    }
}

/// Validates finalizers of core kinds, which need a domain unless they are one of three old names.
fn qualified_finalizers(list: &Value, p: &Path<'_>, e: &mut Errors) {
    for (i, f) in items(list).iter().map(text).enumerate() {
        if !f.contains('/') && !is_standard_finalizer(f) {
            e.invalid(&p.index(i), f, "name is neither a standard finalizer name nor is it fully qualified");
        }
    }
}

/// Validates the metadata of a template for objects that a controller names: only labels and annotations may be set.
pub fn of_template(meta: &Value, p: &Path<'_>, e: &mut Errors) {
    annotations(&meta["annotations"], &p.child("annotations"), e);
    labels(&meta["labels"], &p.child("labels"), e);
    for (field, shown) in [
        ("name", "name"),
        ("generateName", "generateName"),
        ("namespace", "namespace"),
        ("selfLink", "selfLink"),
        ("uid", "uID"),
        ("resourceVersion", "resourceVersion"),
        ("generation", "generation"),
        ("creationTimestamp", "creationTimestamp"),
        ("deletionTimestamp", "deletionTimestamp"),
        ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"),
        ("ownerReferences", "ownerReferences"),
        ("finalizers", "finalizers"),
        ("managedFields", "managedFields"),
    ] {
        let set = match &meta[field] {
            Value::String(s) => !s.is_empty(),
            Value::Number(n) => field == "deletionGracePeriodSeconds" || n.as_i64() != Some(0),
            other => present(other),
        };
        if set {
            e.forbidden(&p.child(shown), "cannot be set");
        }
    }
}

/// Reports `Invalid value: ...: field is immutable` when the two differ.
pub fn immutable(new: &Value, old: &Value, p: &Path<'_>, e: &mut Errors) {
    if !same(new, old) {
        e.invalid(p, new, IMMUTABLE);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the number of errors of an object or its view with this metadata.
    fn faults(group: &'static str, resource: &'static str, view: &str, change: Value) -> usize {
        let o = Options::of(group, resource);
        let mut old = json!({"metadata": {"name": "a", "resourceVersion": "1", "uid": "u"}});
        if o.namespaced {
            old["metadata"]["namespace"] = "n".into();
        }
        let mut new = old.clone();
        for (key, value) in change.as_object().expect("an object") {
            new["metadata"][key.as_str()] = value.clone();
        }
        let mut e = Errors::new();
        check_update(&o, view, &new, &old, &mut e);
        e.len()
    }

    #[test]
    fn faults_are_reported_as_often_as_by_the_reference() {
        for (group, resource, view, labels, finalizers, generated) in [
            ("", "configmaps", "", 4, 2, 2),
            ("apps", "deployments", "", 3, 1, 1),
            ("apps", "controllerrevisions", "", 4, 2, 2),
            ("", "persistentvolumes", "", 4, 2, 3),
            ("", "persistentvolumes", "status", 3, 1, 1),
            ("", "limitranges", "", 3, 1, 2),
            ("", "events", "", 2, 0, 1),
            ("events.k8s.io", "events", "", 3, 1, 1),
            ("policy", "poddisruptionbudgets", "", 2, 0, 1),
            ("policy", "poddisruptionbudgets", "status", 2, 0, 1),
            ("coordination.k8s.io", "leases", "", 3, 0, 1),
            ("certificates.k8s.io", "certificatesigningrequests", "approval", 4, 2, 1),
        ] {
            let at = format!("{group}/{resource}/{view}");
            assert_eq!(faults(group, resource, view, json!({})), 0, "{at}");
            assert_eq!(faults(group, resource, view, json!({"labels": {"a b": "c"}})), labels, "{at}");
            // Not all kinds require a domain.
            assert_eq!(faults(group, resource, view, json!({"finalizers": ["z"]})), finalizers, "{at}");
            assert_eq!(faults(group, resource, view, json!({"generateName": "a/b"})), generated, "{at}");
        }
    }
}
