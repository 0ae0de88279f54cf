//! PersistentVolumes, and what claims of them say in the same words.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::is_dns1123_subdomain;
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME};
use crate::metadata::immutable;
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::pod;
use crate::rules;
use crate::strategy::{Context, Strategy, base_create, base_status_update};
use crate::table::{UNSET, age, name};
use crate::tree::{default_to, default_zero, empty, ensure, entries, items, present, restore, same, set, text};

const MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
pub(super) const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
/// Fields of a volume's spec that are no source.
const NO_SOURCE: &[&str] = &[
    "capacity",
    "accessModes",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "mountOptions",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
];

/// The persistentvolumes resource.
pub struct PersistentVolumes;

static VOLUMES: LazyLock<Options> = LazyLock::new(|| Options {
    columns: columns![
        NAME,
        Column::text("Capacity", "Size of the volume."),
        Column::text("Access Modes", "Ways the volume may be mounted."),
        Column::text("Reclaim Policy", "What happens when its claim goes."),
        Column::text("Status", "Phase of the volume."),
        Column::text("Claim", "Claim that is bound."),
        Column::text("StorageClass", "Class of the storage."),
        Column::text("VolumeAttributesClass", "Class of the volume's attributes."),
        Column::text("Reason", "Why the volume failed."),
        AGE,
        Column::text("VolumeMode", "Filesystem or block device.").wide(),
    ],
    delete_returns_object: true,
    ..Options::of("", "persistentvolumes")
});

impl Strategy for PersistentVolumes {
    fn options(&self) -> &Options {
        &VOLUMES
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(s) = ensure(obj, "status") {
            default_zero(s, "phase", "Pending");
        }
        let Some(spec) = ensure(obj, "spec") else { return };
        default_zero(spec, "persistentVolumeReclaimPolicy", "Retain");
        default_to(spec, "volumeMode", "Filesystem");
        if let Some(c) = spec.get_mut("capacity") {
            pod::canonical_quantities(c);
        }
        if let Some(h) = crate::tree::object_mut(spec, "hostPath") {
            default_to(h, "type", "");
        }
        if let Some(i) = crate::tree::object_mut(spec, "iscsi") {
            default_zero(i, "iscsiInterface", "default");
        }
    }
    fn initial_status(&self) -> Value {
        json!({"phase": "Pending"})
    }
    fn prepare_create(&self, cx: &Context<'_>, obj: &mut Value) {
        base_create(self, obj);
        set_phase_time(obj, cx.now);
    }
    fn prepare_subresource_update(&self, cx: &Context<'_>, _subresource: &str, new: &mut Value, old: &Value) {
        base_status_update(new, old);
        let (told, was) = (&new["status"]["lastPhaseTransitionTime"], &old["status"]["lastPhaseTransitionTime"]);
        if !same(&new["status"]["phase"], &old["status"]["phase"]) && (!present(told) || same(told, was)) {
            set_phase_time(new, cx.now);
        }
    }
    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let recycles = text(&new["spec"]["persistentVolumeReclaimPolicy"]) == "Recycle";
        let warning = "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the \
                       recommended approach is to use dynamic provisioning.";
        recycles.then(|| warning.to_owned()).into_iter().collect()
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        volume_spec(&obj["spec"], e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        let p = Path::new("spec");
        let sources = |s: &Value| -> Value {
            entries(s)
                .filter(|(k, _)| !NO_SOURCE.contains(&k.as_str()))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let (mut now, was) = (sources(&new["spec"]), sources(&old["spec"]));
        // Only the expansion secret of a CSI volume may still be set.
        if let Some(c) = now.get_mut("csi") {
            restore(c, &was["csi"], "controllerExpandSecretRef");
            restore(c, &was["csi"], "nodeExpandSecretRef");
        }
        if !same(&now, &was) {
            let at = p.child("persistentvolumesource");
            e.forbidden(&at, "spec.persistentvolumesource is immutable after creation");
        }
        immutable(&new["spec"]["volumeMode"], &old["spec"]["volumeMode"], &p.child("volumeMode"), e);
        if present(&old["spec"]["nodeAffinity"]) && !same(&new["spec"]["nodeAffinity"], &old["spec"]["nodeAffinity"]) {
            e.invalid(&p.child("nodeAffinity"), &new["spec"]["nodeAffinity"], "field is immutable");
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&obj["spec"], &obj["status"]);
        let claim = &spec["claimRef"];
        let claim = if present(claim) {
            format!("{}/{}", text(&claim["namespace"]), text(&claim["name"]))
        } else {
            String::new()
        };
        let class = match obj["metadata"]["annotations"][CLASS_ANNOTATION].as_str() {
            Some(c) => c,
            None => text(&spec["storageClassName"]),
        };
        vec![
            name(obj),
            quantity(&spec["capacity"]["storage"]),
            json!(modes(&spec["accessModes"])),
            json!(text(&spec["persistentVolumeReclaimPolicy"])),
            phase(obj),
            json!(claim),
            json!(class),
            or_unset(&spec["volumeAttributesClassName"]),
            json!(text(&status["reason"])),
            age(obj, now),
            or_unset(&spec["volumeMode"]),
        ]
    }
}

/// When the phase became what it is.
fn set_phase_time(obj: &mut Value, now: Timestamp) {
    if let Some(status) = ensure(obj, "status") {
        set(status, "lastPhaseTransitionTime", kelson_meta::format_seconds(now));
    }
}

fn volume_spec(spec: &Value, e: &mut Errors) {
    let p = Path::new("spec");
    if empty(&spec["accessModes"]) {
        e.required(&p.child("accessModes"), "");
    }
    access_modes(spec, &p, e);
    let at = p.child("capacity");
    if empty(&spec["capacity"]) {
        e.required(&at, "");
    }
    if !present(&spec["capacity"]["storage"]) || entries(&spec["capacity"]).count() > 1 {
        e.not_supported(&at, &spec["capacity"], &["storage"]);
    }
    for (k, v) in entries(&spec["capacity"]) {
        positive(v, &at.key(k), e);
    }
    let policy = &spec["persistentVolumeReclaimPolicy"];
    rules::optional_one_of(policy, &p.child("persistentVolumeReclaimPolicy"), &["Delete", "Recycle", "Retain"], e);
    if present(&spec["nodeAffinity"]) {
        let at = p.child("nodeAffinity");
        if present(&spec["nodeAffinity"]["required"]) {
            pod::node_selector(&spec["nodeAffinity"]["required"], &at.child("required"), e);
        } else {
            e.required(&at.child("required"), "must specify required node constraints");
        }
    }
    let mut sources = 0;
    for (kind, s) in entries(spec).filter(|(k, v)| !NO_SOURCE.contains(&k.as_str()) && present(v)) {
        let at = p.child(kind);
        sources += 1;
        if sources > 1 {
            e.forbidden(&at, "may not specify more than 1 volume type");
            continue;
        }
        match kind.as_str() {
            "hostPath" => {
                rules::required(&s["path"], &at.child("path"), e);
                if text(&s["path"]) == "/" && text(policy) == "Recycle" {
                    e.forbidden(
                        &p.child("persistentVolumeReclaimPolicy"),
                        "may not be 'recycle' for a hostPath mount of '/'",
                    );
                }
            }
            "nfs" => {
                rules::required(&s["server"], &at.child("server"), e);
                rules::required(&s["path"], &at.child("path"), e);
            }
            "csi" => {
                pod::driver_name(text(&s["driver"]), &at.child("driver"), e);
                rules::required(&s["volumeHandle"], &at.child("volumeHandle"), e);
            }
            "local" => {
                rules::required(&s["path"], &at.child("path"), e);
                if !present(&spec["nodeAffinity"]) {
                    e.required(&p.child("nodeAffinity"), "Local volume requires node affinity");
                }
            }
            _ => {}
        }
    }
    if sources == 0 {
        e.required(&p, "must specify a volume type");
    }
    class_name(spec, "storageClassName", &p, e);
    rules::optional_one_of(&spec["volumeMode"], &p.child("volumeMode"), &["Block", "Filesystem"], e);
    class_name(spec, "volumeAttributesClassName", &p, e);
}

pub(super) fn phase(obj: &Value) -> Value {
    if present(&obj["metadata"]["deletionTimestamp"]) {
        json!("Terminating")
    } else {
        json!(text(&obj["status"]["phase"]))
    }
}
pub(super) fn quantity(v: &Value) -> Value {
    json!(if present(v) { text(v) } else { "0" })
}
pub(super) fn or_unset(v: &Value) -> Value {
    json!(v.as_str().unwrap_or(UNSET))
}
pub(super) fn modes(list: &Value) -> String {
    let has = |m: &str| crate::tree::holds(list, m);
    let all =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    all.iter().filter(|(m, _)| has(m)).map(|(_, s)| *s).collect::<Vec<_>>().join(",")
}

pub(super) fn access_modes(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let at = p.child("accessModes");
    for m in items(&spec["accessModes"]) {
        if !MODES.contains(&text(m)) {
            e.not_supported(&at, m, MODES);
        }
    }
    let single = crate::tree::holds(&spec["accessModes"], "ReadWriteOncePod");
    if single && items(&spec["accessModes"]).iter().any(|m| text(m) != "ReadWriteOncePod") {
        e.forbidden(&at, "may not use ReadWriteOncePod with other access modes");
    }
}

pub(super) fn positive(v: &Value, p: &Path<'_>, e: &mut Errors) {
    if let Some(q) = rules::quantity(v, p, e)
        && q.signum() <= 0
    {
        e.invalid(p, v, "must be greater than zero");
    }
}

pub(super) fn class_name(spec: &Value, f: &str, p: &Path<'_>, e: &mut Errors) {
    let c = text(&spec[f]);
    if !c.is_empty() {
        e.invalid_each(&p.child(f), c, is_dns1123_subdomain(c));
    }
}
