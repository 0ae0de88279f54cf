//! Kinds of storage.k8s.io: storage classes and attribute classes here; CSI drivers, nodes, capacities and attachments
//! in submodules.
mod attachments;
mod csi;

use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::is_qualified_name;
use serde_json::{Value, json};

pub use attachments::VolumeAttachments;
pub use csi::{CsiDrivers, CsiNodes, CsiStorageCapacities};

use crate::column::{AGE, Column, NAME};
use crate::metadata::immutable;
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::pod;
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{age, name};
use crate::tree::{default_to, empty, entries, flag, present, same, text};

const GROUP: &str = "storage.k8s.io";
const PARAMETERS_MAX: usize = 512;
const PARAMETERS_BYTES_MAX: usize = 256 * 1024;

fn parameters(v: &Value, p: &Path<'_>, e: &mut Errors) {
    let count = entries(v).count();
    if count > PARAMETERS_MAX {
        return e.too_long(p, PARAMETERS_MAX);
    }
    let mut total = 0;
    for (k, v) in entries(v) {
        if k.is_empty() {
            e.invalid(p, k, "field can not be empty.");
        }
        total += k.len() + text(v).len();
    }
    if total > PARAMETERS_BYTES_MAX {
        e.too_long(p, PARAMETERS_BYTES_MAX);
    }
}

/// The strategy of storageclasses.
pub struct StorageClasses;

static CLASSES: LazyLock<Options> = LazyLock::new(|| Options {
    columns: columns![
        NAME,
        Column::text("Provisioner", "Provisioner of the volumes."),
        Column::text("ReclaimPolicy", "What happens to volumes when their claims are deleted."),
        Column::text("VolumeBindingMode", "When volumes are bound."),
        // Its cells are booleans nevertheless.
        Column::text("AllowVolumeExpansion", "Whether claims may be expanded."),
        AGE,
    ],
    delete_returns_object: true,
    ..Options::of(GROUP, "storageclasses")
});

impl Strategy for StorageClasses {
    fn options(&self) -> &Options {
        &CLASSES
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        default_to(obj, "reclaimPolicy", "Delete");
        default_to(obj, "volumeBindingMode", "Immediate");
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        provisioner(text(&obj["provisioner"]), &Path::new("provisioner"), e);
        parameters(&obj["parameters"], &Path::new("parameters"), e);
        if !empty(&obj["reclaimPolicy"]) {
            rules::one_of(&obj["reclaimPolicy"], &Path::new("reclaimPolicy"), &["Delete", "Retain"], e);
        }
        let (mode, at) = (&obj["volumeBindingMode"], Path::new("volumeBindingMode"));
        if present(mode) {
            rules::optional_one_of(mode, &at, &["Immediate", "WaitForFirstConsumer"], e);
        } else {
            e.required(&at, "");
        }
        pod::topology_terms(&obj["allowedTopologies"], &Path::new("allowedTopologies"), e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        for f in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
            immutable(&new[f], &old[f], &Path::new(f), e);
        }
        self.check(new, e);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let a = &obj["metadata"]["annotations"];
        let default =
            ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"]
                .iter()
                .any(|k| text(&a[*k]) == "true");
        let n = text(&obj["metadata"]["name"]);
        let or = |f: &str, d: &'static str| json!(obj[f].as_str().unwrap_or(d));
        vec![
            json!(if default { format!("{n} (default)") } else { n.to_owned() }),
            json!(text(&obj["provisioner"])),
            or("reclaimPolicy", "Delete"),
            or("volumeBindingMode", "Immediate"),
            json!(flag(&obj["allowVolumeExpansion"])),
            age(obj, now),
        ]
    }
}

/// Validates the provisioner of a class.
fn provisioner(name: &str, p: &Path<'_>, e: &mut Errors) {
    if name.is_empty() {
        e.required(p, "");
    } else {
        e.invalid_each(p, name, is_qualified_name(&name.to_lowercase()));
    }
}

/// The strategy of volumeattributesclasses.
pub struct VolumeAttributesClasses;

static ATTRIBUTES: LazyLock<Options> = LazyLock::new(|| Options {
    columns: columns![NAME, Column::text("DriverName", "CSI driver the class is for."), AGE],
    delete_returns_object: true,
    ..Options::of(GROUP, "volumeattributesclasses")
});

impl Strategy for VolumeAttributesClasses {
    fn options(&self) -> &Options {
        &ATTRIBUTES
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        provisioner(text(&obj["driverName"]), &Path::new("driverName"), e);
        let p = Path::new("parameters");
        if empty(&obj["parameters"]) {
            e.required(&p, "must contain at least one key/value pair");
        }
        parameters(&obj["parameters"], &p, e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        for f in ["driverName", "parameters"] {
            if !same(&new[f], &old[f]) {
                e.forbidden(&Path::new(f), format!("updates to {f} are forbidden."));
            }
        }
        self.check(new, e);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(obj), json!(text(&obj["driverName"])), age(obj, now)]
    }
}
