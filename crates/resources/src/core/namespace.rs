//! Namespaces: the name label, finalizers of the spec, phase, the `finalize` subresource.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::is_qualified_name;
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME};
use crate::names::NameRule;
use crate::options::{Deletion, Options, columns, texts};
use crate::path::{Errors, Path};
use crate::strategy::{Context, Strategy, base_status_update, bump_generation};
use crate::table::{age, name};
use crate::tree::{default_zero, ensure, holds, items, present, restore, set, text};

const NAME_LABEL: &str = "kubernetes.io/metadata.name";
const FINALIZER: &str = "kubernetes";

/// The strategy of namespaces.
pub struct Namespaces;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    name: NameRule::Label,
    deletion: Deletion::Namespace,
    columns: columns![NAME, Column::text("Status", "Phase of the namespace."), AGE],
    fields: texts!["status.phase"],
    ..Options::of("", "namespaces")
});

impl Strategy for Namespaces {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        self.canonicalize(obj);
        ensure(obj, "spec");
        if let Some(s) = ensure(obj, "status") {
            default_zero(s, "phase", "Active");
        }
    }
    fn canonicalize(&self, obj: &mut Value) {
        let name = text(&obj["metadata"]["name"]).to_owned();
        if !name.is_empty()
            && let Some(labels) = obj.get_mut("metadata").and_then(|m| ensure(m, "labels"))
        {
            set(labels, NAME_LABEL, name);
        }
    }
    fn prepare_create(&self, _cx: &Context<'_>, obj: &mut Value) {
        set(obj, "status", json!({"phase": "Active"}));
        if let Some(spec) = ensure(obj, "spec")
            && !holds(&spec["finalizers"], FINALIZER)
        {
            match spec.get_mut("finalizers").and_then(Value::as_array_mut) {
                Some(list) => list.push(json!(FINALIZER)),
                None => set(spec, "finalizers", vec![json!(FINALIZER)]),
            }
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let spec = Path::new("spec");
        finalizers(obj, &spec.child("finalizers"), e);
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        restore(new, old, "status");
        if let Some(spec) = ensure(new, "spec") {
            restore(spec, &old["spec"], "finalizers");
        }
        bump_generation(&OPTIONS, new, old);
    }
    fn prepare_subresource_update(&self, _cx: &Context<'_>, subresource: &str, new: &mut Value, old: &Value) {
        if subresource == "finalize" {
            restore(new, old, "status");
            bump_generation(&OPTIONS, new, old);
        } else {
            base_status_update(new, old);
        }
    }
    fn check_subresource_update(&self, subresource: &str, new: &Value, _old: &Value, e: &mut Errors) {
        if subresource == "finalize" {
            let spec = Path::new("spec");
            let p = spec.child("finalizers");
            for (i, f) in items(&new["spec"]["finalizers"]).iter().enumerate() {
                // Here the path has the index; when a namespace is created it has none.
                finalizer(text(f), &p.index(i), e);
            }
            return;
        }
        let phase = text(&new["status"]["phase"]);
        let deleting = present(&new["metadata"]["deletionTimestamp"]);
        let status = Path::new("status");
        let p = status.child("Phase");
        match (deleting, phase) {
            (false, "Active") | (true, "Terminating") => {}
            (false, _) => e.invalid(&p, phase, "may only be 'Active' if `deletionTimestamp` is empty"),
            (true, _) => e.invalid(&p, phase, "may only be 'Terminating' if `deletionTimestamp` is not empty"),
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(obj), obj["status"]["phase"].clone(), age(obj, now)]
    }
}

fn finalizers(obj: &Value, p: &Path<'_>, e: &mut Errors) {
    items(&obj["spec"]["finalizers"]).iter().for_each(|f| finalizer(text(f), p, e));
}

fn finalizer(f: &str, p: &Path<'_>, e: &mut Errors) {
    e.invalid_each(p, f, is_qualified_name(f));
    if !f.contains('/') && !matches!(f, "kubernetes" | "orphan" | "foregroundDeletion") {
        e.invalid(p, f, "name is neither a standard finalizer name nor is it fully qualified");
    }
}
