//! PersistentVolumeClaims.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{Quantity, is_dns1123_label, is_dns1123_subdomain, is_qualified_name};
use serde_json::{Value, json};

use super::volume::{CLASS_ANNOTATION, class_name, modes, or_unset, phase, positive, quantity};
use crate::column::{AGE, Column, NAME};
use crate::metadata::immutable;
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::pod;
use crate::rules;
use crate::strategy::{Context, Strategy, base_create, base_update};
use crate::table::{age, name};
use crate::tree::{default_zero, ensure, entries, items, present, remove, restore, same, set, text};
use crate::volume_sources;

/// The states of resizing a claim (KEP-1790).
const RESIZE_STATUSES: &[&str] = &[
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

/// The strategy of persistentvolumeclaims.
pub struct PersistentVolumeClaims;

static CLAIMS: LazyLock<Options> = LazyLock::new(|| Options {
    columns: columns![
        NAME,
        Column::text("Status", "Phase of the claim."),
        Column::text("Volume", "Volume that is bound."),
        Column::text("Capacity", "Size of that volume."),
        Column::text("Access Modes", "Ways the volume may be mounted."),
        Column::text("StorageClass", "Class of the storage."),
        Column::text("VolumeAttributesClass", "Class of the volume's attributes."),
        AGE,
        Column::text("VolumeMode", "Filesystem or block device.").wide(),
    ],
    delete_returns_object: true,
    ..Options::of("", "persistentvolumeclaims")
});

impl Strategy for PersistentVolumeClaims {
    fn options(&self) -> &Options {
        &CLAIMS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(s) = ensure(obj, "status") {
            default_zero(s, "phase", "Pending");
            if let Some(c) = s.get_mut("capacity") {
                pod::canonical_quantities(c);
            }
        }
        let Some(spec) = ensure(obj, "spec") else { return };
        pod::claim_spec(spec);
    }
    fn prepare_create(&self, _cx: &Context<'_>, obj: &mut Value) {
        base_create(self, obj);
        if let Some(spec) = obj.get_mut("spec") {
            agree_on_source(spec, &Value::Null);
        }
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        base_update(&CLAIMS, new, old);
        if let Some(spec) = new.get_mut("spec") {
            agree_on_source(spec, &old["spec"]);
        }
    }
    fn initial_status(&self) -> Value {
        json!({"phase": "Pending"})
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        claim_spec(&obj["spec"], &Path::new("spec"), e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        let had_group = ["dataSource", "dataSourceRef"].iter().any(|f| present(&old["spec"][*f]["apiGroup"]));
        spec_of(&new["spec"], had_group, &Path::new("spec"), e);
        check_claim_update(new, old, e);
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, _old: &Value, e: &mut Errors) {
        let p = Path::new("status");
        let sound = |v: &Value, at: &Path<'_>, e: &mut Errors| {
            if let Some(q) = rules::quantity(v, at, e)
                && q.signum() < 0
            {
                e.invalid(at, v, "must be a valid resource quantity");
            }
        };
        let at = p.child("capacity");
        entries(&new["status"]["capacity"]).for_each(|(k, v)| sound(v, &at.key(k), e));
        let at = p.child("allocatedResourceStatuses");
        for (k, v) in entries(&new["status"]["allocatedResourceStatuses"]) {
            claimed_resource(k, &at, e);
            if !RESIZE_STATUSES.contains(&text(v)) {
                e.not_supported(&at, k, RESIZE_STATUSES);
            }
        }
        let at = p.child("allocatedResources");
        for (k, v) in entries(&new["status"]["allocatedResources"]) {
            if claimed_resource(k, &at, e) {
                sound(v, &at.key(k), e);
            }
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&obj["spec"], &obj["status"]);
        let bound = !text(&spec["volumeName"]).is_empty();
        let class = match obj["metadata"]["annotations"][CLASS_ANNOTATION].as_str() {
            Some(c) => c,
            None => text(&spec["storageClassName"]),
        };
        vec![
            name(obj),
            phase(obj),
            json!(text(&spec["volumeName"])),
            if bound { quantity(&status["capacity"]["storage"]) } else { json!("") },
            json!(if bound { modes(&status["accessModes"]) } else { String::new() }),
            json!(class),
            or_unset(&spec["volumeAttributesClassName"]),
            age(obj, now),
            or_unset(&spec["volumeMode"]),
        ]
    }
}

/// Validates a resource of a claim: storage, or one with a domain.
fn claimed_resource(name: &str, p: &Path<'_>, e: &mut Errors) -> bool {
    if let Err(why) = is_qualified_name(name) {
        e.invalid_each(p, name, Err(why));
        return false;
    }
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    if native && name != "storage" {
        e.not_supported(p, name, &["storage"]);
        return false;
    }
    true
}

/// Synchronizes the older and the newer field for a claim's source (KEP-1495). A value that the older one does not
/// support is dropped, unless the claim had a source already.
fn agree_on_source(spec: &mut Value, old: &Value) {
    let in_use = present(&old["dataSource"]) || present(&old["dataSourceRef"]);
    let known = |source: &Value| {
        matches!(
            (text(&source["kind"]), text(&source["apiGroup"])),
            ("PersistentVolumeClaim", "") | ("VolumeSnapshot", "snapshot.storage.k8s.io")
        )
    };
    if !in_use && !present(&spec["dataSourceRef"]) && !known(&spec["dataSource"]) {
        remove(spec, "dataSource");
    }
    let named =
        |source: &Value| json!({"apiGroup": source["apiGroup"], "kind": source["kind"], "name": source["name"]});
    let (one, other) = (&spec["dataSource"], &spec["dataSourceRef"]);
    if present(one) && !present(other) {
        let copy = named(one);
        set(spec, "dataSourceRef", copy);
    } else if present(other) && !present(one) && text(&other["namespace"]).is_empty() {
        let copy = named(other);
        set(spec, "dataSource", copy);
    }
}

/// Validates a claim's spec, in claims and in claim templates.
pub(crate) fn claim_spec(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    spec_of(spec, false, p, e);
}

/// Validates a claim's spec; the groups of a source may be anything if the claim had one before, since they were not
/// always validated.
fn spec_of(spec: &Value, any_group: bool, p: &Path<'_>, e: &mut Errors) {
    if items(&spec["accessModes"]).is_empty() {
        e.required(&p.child("accessModes"), "at least 1 access mode is required");
    }
    rules::label_selector(&spec["selector"], &p.child("selector"), e);
    volume_sources::access_modes(spec, p, e);
    let resources = p.child("resources");
    let at = resources.key("storage");
    let storage = &spec["resources"]["requests"]["storage"];
    if present(storage) {
        positive(storage, &at, e);
    } else {
        e.required(&at, "");
    }
    class_name(spec, "storageClassName", p, e);
    rules::optional_one_of(&spec["volumeMode"], &p.child("volumeMode"), &["Block", "Filesystem"], e);
    for f in ["dataSource", "dataSourceRef"] {
        let (source, at) = (&spec[f], p.child(f));
        if !present(source) {
            continue;
        }
        rules::required(&source["name"], &at.child("name"), e);
        rules::required(&source["kind"], &at.child("kind"), e);
        let group = text(&source["apiGroup"]);
        if group.is_empty() && text(&source["kind"]) != "PersistentVolumeClaim" {
            e.invalid(&at, &source["kind"], "must be 'PersistentVolumeClaim' when referencing the default apiGroup");
        }
        if !group.is_empty() && !any_group {
            e.invalid_each(&at.child("apiGroup"), group, is_dns1123_subdomain(group));
        }
        let namespace = text(&source["namespace"]);
        if !namespace.is_empty() {
            e.invalid_each(&at.child("namespace"), namespace, is_dns1123_label(namespace));
        }
    }
    let (old, new) = (&spec["dataSource"], &spec["dataSourceRef"]);
    if present(old) && present(new) {
        if !text(&new["namespace"]).is_empty() {
            e.invalid(p, "dataSource", "may not be specified when dataSourceRef.namespace is specified");
        } else if ["apiGroup", "kind", "name"].iter().any(|f| old[*f] != new[*f]) {
            e.invalid(p, "dataSource", "must match dataSourceRef");
        }
    }
    class_name(spec, "volumeAttributesClassName", p, e);
}

fn check_claim_update(new: &Value, old: &Value, e: &mut Errors) {
    let p = Path::new("spec");
    let (mut n, o) = (new["spec"].clone(), &old["spec"]);
    if text(&o["volumeName"]).is_empty() {
        restore(&mut n, o, "volumeName");
    }
    if !present(&o["storageClassName"]) && present(&n["storageClassName"]) {
        restore(&mut n, o, "storageClassName");
    }
    if text(&new["status"]["phase"]) == "Bound" {
        if let Some(r) = crate::tree::at_mut(&mut n, &["resources", "requests"]) {
            restore(r, &o["resources"]["requests"], "storage");
        }
        restore(&mut n, o, "volumeAttributesClassName");
    }
    if !same(&n, o) {
        e.forbidden(
            &p,
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        );
    }
    let size = |v: &Value| text(v).parse::<Quantity>().unwrap_or_default();
    let now = size(&new["spec"]["resources"]["requests"]["storage"]);
    let status = size(&old["status"]["capacity"]["storage"]);
    if now < size(&o["resources"]["requests"]["storage"]) && now <= status {
        let r = p.child("resources");
        let r = r.child("requests");
        e.forbidden(&r.child("storage"), "field can not be less than status.capacity");
    }
    immutable(&new["spec"]["volumeMode"], &o["volumeMode"], &Path::new("volumeMode"), e);
    if present(&old["status"]["currentVolumeAttributesClassName"]) {
        let at = p.child("volumeAttributesClassName");
        match new["spec"]["volumeAttributesClassName"].as_str() {
            None => {
                e.forbidden(&at, "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil")
            }
            Some("") => e.forbidden(
                &at,
                "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil",
            ),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims() {
        let mut c = json!({"metadata": {"name": "c", "namespace": "n", "resourceVersion": "1"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        PersistentVolumeClaims.set_defaults("v1", &mut c);
        assert_eq!(PersistentVolumeClaims.validate_create(&c).to_string(), "[]");
        let mut new = c.clone();
        new["spec"]["volumeName"] = json!("v");
        assert_eq!(PersistentVolumeClaims.validate_update(&new, &c).to_string(), "[]");
        new["spec"]["accessModes"] = json!(["ReadWriteMany"]);
        assert_eq!(
            PersistentVolumeClaims.validate_update(&new, &c).to_string(),
            "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
        );
        let bad = json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {}});
        assert_eq!(
            PersistentVolumeClaims.validate_create(&bad).to_string(),
            "[spec.accessModes: Required value: at least 1 access mode is required, spec.resources[storage]: Required value]"
        );
    }
}
