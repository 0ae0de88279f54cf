//! Volume sources: one table of sources and one check for each, in pods, PersistentVolumes and inline volumes of
//! VolumeAttachments (upstream `pkg/apis/core/validation`, `validateVolumeSource`, `ValidatePersistentVolumeSpec`).
mod check;

use serde_json::Value;

pub use check::{Owner, driver_name, local, persistent_csi, pod_csi, portal_of_pod, shared};

use crate::path::{Errors, Path};
use crate::tree::{holds, items, present, text};

/// The sources of a pod's volume, in the order of validation.
pub const OF_PODS: &[&str] = &[
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

/// The sources of a PersistentVolume, in the order of validation.
pub const OF_PERSISTENT_VOLUMES: &[&str] = &[
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

/// Validates that `volume` has exactly one of the sources in `all`, and calls `check` for it.
pub fn one(
    volume: &Value,
    all: &[&str],
    p: &Path<'_>,
    e: &mut Errors,
    mut check: impl FnMut(&str, &Value, &Path<'_>, &mut Errors),
) {
    let persistent = !all.contains(&"emptyDir");
    let mut found = false;
    for kind in all.iter().filter(|kind| present(&volume[**kind])) {
        // Upstream allows a FlexVolume together with another source of a PersistentVolume.
        if found && !(persistent && *kind == "flexVolume") {
            e.forbidden(&p.child(second_name(kind)), "may not specify more than 1 volume type");
            continue;
        }
        found = true;
        let shown = if *kind == "gcePersistentDisk" { "persistentDisk" } else { kind };
        check(kind, &volume[*kind], &p.child(shown), e);
    }
    if !found {
        e.required(p, "must specify a volume type");
    }
}

/// Returns the name of a second source in messages; upstream spells two of them differently.
fn second_name<'a>(kind: &&'a str) -> &'a str {
    match *kind {
        "cephfs" => "cephFS",
        "downwardAPI" => "downwarAPI",
        kind => kind,
    }
}

/// Validates access modes of a PersistentVolume or a claim.
pub fn access_modes(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    const MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    let at = p.child("accessModes");
    let modes = items(&spec["accessModes"]);
    for m in modes.iter().filter(|m| !MODES.contains(&text(m))) {
        e.not_supported(&at, m, MODES);
    }
    let others = modes.iter().map(text).any(|m| MODES.contains(&m) && m != "ReadWriteOncePod");
    if others && holds(&spec["accessModes"], "ReadWriteOncePod") {
        e.forbidden(&at, "may not use ReadWriteOncePod with other access modes");
    }
}

/// Sets the defaults of a source, in pods and in PersistentVolumes (upstream `SetDefaults_*VolumeSource`).
pub fn defaults(volume: &mut Value) {
    use crate::tree::{default_to, default_zero, object_mut};
    if let Some(s) = object_mut(volume, "hostPath") {
        default_to(s, "type", "");
    }
    if let Some(s) = object_mut(volume, "iscsi") {
        default_zero(s, "iscsiInterface", "default");
    }
    if let Some(s) = object_mut(volume, "rbd") {
        default_zero(s, "pool", "rbd");
        default_zero(s, "user", "admin");
        default_zero(s, "keyring", "/etc/ceph/keyring");
    }
    if let Some(s) = object_mut(volume, "azureDisk") {
        default_to(s, "cachingMode", "ReadWrite");
        default_to(s, "kind", "Shared");
        default_to(s, "fsType", "ext4");
        default_to(s, "readOnly", false);
    }
    if let Some(s) = object_mut(volume, "scaleIO") {
        default_zero(s, "storageMode", "ThinProvisioned");
        default_zero(s, "fsType", "xfs");
    }
}
