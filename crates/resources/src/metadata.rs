//! Rules for `metadata` of every kind (apimachinery `api/validation/objectmeta.go`). Who sets uid, timestamps and
//! resourceVersion is the request path; here is only what may stand there.
use kelson_meta::metadata::common;
pub use kelson_meta::metadata::{ANNOTATIONS_BYTES_MAX, annotations, labels};
use kelson_meta::{is_dns1123_label, is_qualified_name};
use serde_json::Value;

use crate::names::NameRule;
use crate::options::Options;
use crate::path::{Errors, Path};
use crate::tree::{int, items, present, remove, same, set, text};

/// What every immutable field answers.
pub const IMMUTABLE: &str = "field is immutable";

/// Faults of a new object's metadata.
pub fn check(o: &Options, meta: &Value, e: &mut Errors) {
    check_at(o.name, o.namespaced, meta, &Path::new("metadata"), e);
}

/// Faults of a new custom resource's metadata: its finalizers need no domain.
pub fn check_custom(o: &Options, meta: &Value, e: &mut Errors) {
    let p = Path::new("metadata");
    check_but_finalizers(o.name, o.namespaced, meta, &p, e);
    finalizers(&meta["finalizers"], false, &p.child("finalizers"), e);
}

/// Faults of metadata at any path (pod templates' objects, claim templates).
pub fn check_at(rule: NameRule, namespaced: bool, meta: &Value, p: &Path<'_>, e: &mut Errors) {
    check_but_finalizers(rule, namespaced, meta, p, e);
    finalizers(&meta["finalizers"], true, &p.child("finalizers"), e);
}

fn check_but_finalizers(rule: NameRule, namespaced: bool, meta: &Value, p: &Path<'_>, e: &mut Errors) {
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
    common(meta, p, e);
}

/// Faults of an update's metadata.
pub fn check_update(new: &Value, old: &Value, e: &mut Errors) {
    check_update_by(new, old, true, e);
}

/// Faults of a custom resource's metadata on update.
pub fn check_custom_update(new: &Value, old: &Value, e: &mut Errors) {
    check_update_by(new, old, false, e);
}

/// Upstream looks at metadata once for all kinds and once more with the rules of each; clients see every fault twice.
fn check_update_by(new: &Value, old: &Value, qualified: bool, e: &mut Errors) {
    let mut found = Errors::new();
    faults_of_update(new, old, qualified, &mut found);
    let found = found.finish();
    e.extend(found.clone());
    e.extend(found);
}

fn faults_of_update(new: &Value, old: &Value, qualified: bool, e: &mut Errors) {
    let p = Path::new("metadata");
    let (n, m) = (&new["metadata"], &old["metadata"]);
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
        if n[f] != m[f] {
            e.invalid(&p.child(f), &n[f], IMMUTABLE);
        }
    }
    common(n, &p, e);
    if n["finalizers"] != m["finalizers"] {
        finalizers(&n["finalizers"], qualified, &p.child("finalizers"), e);
    }
}

/// What an update can never change: uid, creation and deletion times are taken from the old object.
pub fn keep_system_fields(new: &mut Value, old: &Value) {
    let old = &old["metadata"];
    let Some(meta) = crate::tree::ensure(new, "metadata") else { return };
    if text(&meta["uid"]).is_empty()
        && let Some(uid) = old.get("uid")
    {
        set(meta, "uid", uid.clone());
    }
    for f in ["creationTimestamp", "deletionTimestamp"] {
        match old.get(f).filter(|v| present(v)) {
            Some(v) => set(meta, f, v.clone()),
            None => remove(meta, f),
        }
    }
    if !present(&meta["deletionGracePeriodSeconds"])
        && let Some(v) = old.get("deletionGracePeriodSeconds")
    {
        set(meta, "deletionGracePeriodSeconds", v.clone());
    }
}

/// Whether a finalizer is one of those that need no domain.
fn is_standard_finalizer(name: &str) -> bool {
    matches!(name, "orphan" | "foregroundDeletion" | "kubernetes")
}

/// What users of a custom resource are told of the finalizers that a write adds.
pub fn finalizer_warnings(meta: &Value, old: Option<&Value>) -> Vec<String> {
    const ADVICE: &str = "to avoid accidental conflicts with other finalizer writers";
    let before = old.map(|o| items(&o["finalizers"])).unwrap_or_default();
    let mut added: Vec<&str> = items(&meta["finalizers"]).iter().filter(|f| !before.contains(f)).map(text).collect();
    added.sort_unstable();
    added.dedup();
    let mut out = Vec::new();
    for name in added {
        let told = |why: &str| format!("metadata.finalizers: {name:?}: {why}");
        out.extend(is_qualified_name(name).err().into_iter().flatten().map(|why| told(&why)));
        if name.contains('/') || is_standard_finalizer(name) {
            continue;
        }
        let path = if name.contains('.') { " including a path (/)" } else { "" };
        out.push(told(&format!("prefer a domain-qualified finalizer name{path} {ADVICE}")));
    }
    out
}

fn finalizers(list: &Value, qualified: bool, p: &Path<'_>, e: &mut Errors) {
    let (mut orphan, mut foreground) = (false, false);
    for (i, f) in items(list).iter().map(text).enumerate() {
        let at = p.index(i);
        e.invalid_each(p, f, is_qualified_name(f));
        orphan |= f == "orphan";
        foreground |= f == "foregroundDeletion";
        // Upstream's core kinds want a domain unless the name is one of the three old ones.
        if qualified && !f.contains('/') && !is_standard_finalizer(f) {
            e.invalid(&at, f, "name is neither a standard finalizer name nor is it fully qualified");
        }
    }
    if orphan && foreground {
        e.invalid(p, list, "finalizer orphan and foregroundDeletion cannot be both set");
    }
}

/// `Invalid value: ...: field is immutable` when the two differ.
pub fn immutable(new: &Value, old: &Value, p: &Path<'_>, e: &mut Errors) {
    if !same(new, old) {
        e.invalid(p, new, IMMUTABLE);
    }
}
