//! PersistentVolumes, and the parts that claims have as well.
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
use crate::tree::{default_to, default_zero, empty, ensure, entries, items_mut, present, restore, same, set, text};
use crate::volume_sources::{self, Owner};

pub(super) const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
/// The strategy of persistentvolumes.
pub struct PersistentVolumes;

static VOLUMES: LazyLock<Options> = LazyLock::new(|| Options {
    columns: columns![
        NAME,
        Column::text("Capacity", "Size of the volume."),
        Column::text("Access Modes", "Ways the volume may be mounted."),
        Column::text("Reclaim Policy", "What happens to the volume when its claim is deleted."),
        Column::text("Status", "Phase of the volume."),
        Column::text("Claim", "Claim that is bound."),
        Column::text("StorageClass", "Class of the storage."),
        Column::text("VolumeAttributesClass", "Class of the volume's attributes."),
        Column::text("Reason", "Reason of the volume's phase."),
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
        volume_sources::defaults(spec);
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
        let (reported, was) = (&new["status"]["lastPhaseTransitionTime"], &old["status"]["lastPhaseTransitionTime"]);
        let unsaid = !present(reported);
        if !same(&new["status"]["phase"], &old["status"]["phase"]) {
            if unsaid || same(reported, was) {
                set_phase_time(new, cx.now);
            }
        } else if unsaid && let Some(status) = new.get_mut("status") {
            restore(status, &old["status"], "lastPhaseTransitionTime");
        }
    }
    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let recycles = text(&new["spec"]["persistentVolumeReclaimPolicy"]) == "Recycle";
        let warning = "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the \
                       recommended approach is to use dynamic provisioning.";
        recycles.then(|| warning.to_owned()).into_iter().collect()
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        volume_spec(&obj["spec"], text(&obj["metadata"]["name"]), &Path::new("spec"), e);
        if present(&obj["metadata"]["annotations"][MOUNT_OPTIONS])
            && !TAKING_MOUNT_OPTIONS.iter().any(|kind| present(&obj["spec"][*kind]))
        {
            let (metadata, why) = (Path::new("metadata"), "may not specify mount options for this volume type");
            e.forbidden(&metadata.child("annotations").child(MOUNT_OPTIONS), why);
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        let p = Path::new("spec");
        let (now, was) = (&new["spec"], &old["spec"]);
        // Only the expansion secret of a CSI volume may still be set.
        let mut kept = now["csi"].clone();
        if !present(&was["csi"]["controllerExpandSecretRef"]) && present(&was["csi"]) {
            crate::tree::remove(&mut kept, "controllerExpandSecretRef");
        }
        let same_source = |kind: &str| same(if kind == "csi" { &kept } else { &now[kind] }, &was[kind]);
        if !volume_sources::OF_PERSISTENT_VOLUMES.iter().all(|kind| same_source(kind)) {
            let at = p.child("persistentvolumesource");
            e.forbidden(&at, "spec.persistentvolumesource is immutable after creation");
        }
        // Upstream's path of these two lacks the spec.
        immutable(&now["volumeMode"], &was["volumeMode"], &Path::new("volumeMode"), e);
        if present(&was["nodeAffinity"]) && !same_affinity(&now["nodeAffinity"], &was["nodeAffinity"]) {
            let why = "field is immutable, except for updating from beta label to GA";
            e.invalid(&Path::new("nodeAffinity"), &now["nodeAffinity"], why);
        }
        if present(&was["volumeAttributesClassName"]) && !present(&now["volumeAttributesClassName"]) {
            e.forbidden(&p.child("volumeAttributesClassName"), "update from non-nil value to nil is forbidden");
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

/// The annotation that was used before `spec.mountOptions` existed.
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
/// The volume types that take mount options from the annotation.
const TAKING_MOUNT_OPTIONS: [&str; 13] = [
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "gcePersistentDisk",
    "glusterfs",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "quobyte",
    "rbd",
    "vsphereVolume",
];

/// When the phase became what it is.
fn set_phase_time(obj: &mut Value, now: Timestamp) {
    if let Some(status) = ensure(obj, "status") {
        set(status, "lastPhaseTransitionTime", kelson_meta::format_seconds(now));
    }
}

/// Reports whether a volume's affinity is unchanged, except for renamed labels.
fn same_affinity(new: &Value, old: &Value) -> bool {
    const RENAMED: [(&str, &str); 5] = [
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
        ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ];
    let (mut renamed, mut shown) = (old.clone(), new.clone());
    let terms =
        crate::tree::at_mut(&mut renamed, &["required"]).into_iter().flat_map(|r| items_mut(r, "nodeSelectorTerms"));
    for (i, term) in terms.enumerate() {
        for (j, requirement) in items_mut(term, "matchExpressions").enumerate() {
            let now = text(&new["required"]["nodeSelectorTerms"][i]["matchExpressions"][j]["key"]);
            if RENAMED.iter().any(|(was, name)| requirement["key"] == *was && now == *name) {
                set(requirement, "key", now);
            }
            // A missing key is reported by its own error.
            let at = format!("/required/nodeSelectorTerms/{i}/matchExpressions/{j}");
            if let Some(asked) = shown.pointer_mut(&at).filter(|_| now.is_empty()) {
                set(asked, "key", requirement["key"].clone());
            }
        }
    }
    same(&shown, &renamed)
}

/// Validates the spec of a PersistentVolume with this name.
fn volume_spec(spec: &Value, name: &str, p: &Path<'_>, e: &mut Errors) {
    access(spec, p, e);
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
    let policy = text(&spec["persistentVolumeReclaimPolicy"]);
    if !policy.is_empty() {
        let supported = &["Delete", "Recycle", "Retain"];
        rules::one_of(&spec["persistentVolumeReclaimPolicy"], &p.child("persistentVolumeReclaimPolicy"), supported, e);
    }
    if present(&spec["nodeAffinity"]) {
        let at = p.child("nodeAffinity");
        if present(&spec["nodeAffinity"]["required"]) {
            pod::node_selector(&spec["nodeAffinity"]["required"], &at.child("required"), e);
        } else {
            e.required(&at.child("required"), "must specify required node constraints");
        }
    }
    source(spec, name, p, e);
    class_name(spec, "storageClassName", p, e);
    rules::optional_one_of(&spec["volumeMode"], &p.child("volumeMode"), &["Block", "Filesystem"], e);
    attributes_class(spec, p, e);
}

/// Validates the inline volume of a VolumeAttachment: the fields of a PersistentVolume that a driver needs, and no
/// others.
pub fn inline_volume_spec(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    for (f, set) in [
        ("claimRef", present(&spec["claimRef"])),
        ("capacity", !empty(&spec["capacity"])),
        ("nodeAffinity", present(&spec["nodeAffinity"])),
        ("storageClassName", !empty(&spec["storageClassName"])),
    ] {
        if set {
            e.forbidden(&p.child(f), "may not be specified in the context of inline volumes");
        }
    }
    if !present(&spec["csi"]) {
        e.required(&p.child("csi"), "has to be specified in the context of inline volumes");
    }
    access(spec, p, e);
    if !matches!(text(&spec["persistentVolumeReclaimPolicy"]), "" | "Retain") {
        e.forbidden(&p.child("persistentVolumeReclaimPolicy"), "may only be Retain in the context of inline volumes");
    }
    source(spec, "", p, e);
    if spec["volumeMode"].as_str().is_some_and(|mode| mode != "Filesystem") {
        let why = "may not specify volumeMode other than Filesystem in the context of inline volumes";
        e.forbidden(&p.child("volumeMode"), why);
    }
}

fn access(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    if empty(&spec["accessModes"]) {
        e.required(&p.child("accessModes"), "");
    }
    volume_sources::access_modes(spec, p, e);
}

fn source(spec: &Value, name: &str, p: &Path<'_>, e: &mut Errors) {
    volume_sources::one(spec, volume_sources::OF_PERSISTENT_VOLUMES, p, e, |kind, s, at, e| match kind {
        "csi" => volume_sources::persistent_csi(s, at, e),
        "local" => {
            volume_sources::local(s, at, e);
            if !present(&spec["nodeAffinity"]) {
                e.required(&p.child("nodeAffinity"), "Local volume requires node affinity");
            }
        }
        _ => {
            volume_sources::shared(kind, s, Owner::Volume(name), at, e);
        }
    });
    let root = text(&spec["hostPath"]["path"]);
    let is_root = root.starts_with('/') && root.split('/').all(|part| matches!(part, "" | "." | ".."));
    if is_root && text(&spec["persistentVolumeReclaimPolicy"]) == "Recycle" {
        e.forbidden(&p.child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'");
    }
}

fn attributes_class(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let Some(class) = spec["volumeAttributesClassName"].as_str() else { return };
    if class.is_empty() {
        e.required(&p.child("volumeAttributesClassName"), "an empty string is disallowed");
    }
    class_name(spec, "volumeAttributesClassName", p, e);
    if !present(&spec["csi"]) {
        e.required(&p.child("csi"), "has to be specified when using volumeAttributesClassName");
    }
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
