//! Kinds of storage.k8s.io: storage classes, CSI drivers, nodes and capacities, attachments, attribute classes.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{is_dns1123_subdomain, is_qualified_name};
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME};
use crate::metadata::{IMMUTABLE, immutable};
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::pod;
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{UNSET, age, name, or_none};
use crate::tree::{default_to, empty, ensure, entries, flag, items, present, same, set, text};

const GROUP: &str = "storage.k8s.io";
const PARAMETERS_MAX: usize = 512;
const PARAMETERS_BYTES_MAX: usize = 256 * 1024;

fn parameters(v: &Value, p: &Path<'_>, e: &mut Errors) {
    let count = entries(v).count();
    if count > PARAMETERS_MAX {
        let why = format!("may not contain more than {PARAMETERS_MAX} parameters");
        return e.invalid(p, count, why);
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

/// The storageclasses resource.
pub struct StorageClasses;

static CLASSES: LazyLock<Options> = LazyLock::new(|| Options {
    columns: columns![
        NAME,
        Column::text("Provisioner", "Who makes the volumes."),
        Column::text("ReclaimPolicy", "What happens when a claim goes."),
        Column::text("VolumeBindingMode", "When volumes are bound."),
        // Its cells are true or false all the same.
        Column::text("AllowVolumeExpansion", "Whether claims may grow."),
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
        rules::optional_one_of(&obj["reclaimPolicy"], &Path::new("reclaimPolicy"), &["Delete", "Retain"], e);
        let modes = &["Immediate", "WaitForFirstConsumer"];
        rules::one_of(&obj["volumeBindingMode"], &Path::new("volumeBindingMode"), modes, e);
        pod::topology_terms(&obj["allowedTopologies"], &Path::new("allowedTopologies"), e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        for (f, why) in [
            ("parameters", "updates to parameters are forbidden."),
            ("provisioner", "updates to provisioner are forbidden."),
            ("reclaimPolicy", "updates to reclaimPolicy are forbidden."),
        ] {
            if !same(&new[f], &old[f]) {
                e.forbidden(&Path::new(f), why);
            }
        }
        immutable(&new["volumeBindingMode"], &old["volumeBindingMode"], &Path::new("volumeBindingMode"), e);
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

/// The csidrivers resource.
pub struct CsiDrivers;

static DRIVERS: LazyLock<Options> = LazyLock::new(|| Options {
    allow_unconditional_update: false,
    columns: columns![
        NAME,
        Column::boolean("AttachRequired", "Whether volumes are attached first."),
        Column::boolean("PodInfoOnMount", "Whether the driver is told of the pod."),
        Column::boolean("StorageCapacity", "Whether capacity steers scheduling."),
        Column::text("TokenRequests", "Audiences of the pod's tokens."),
        Column::boolean("RequiresRepublish", "Whether volumes are published again and again."),
        Column::text("Modes", "Kinds of volumes."),
        AGE,
    ],
    delete_returns_object: true,
    ..Options::of(GROUP, "csidrivers")
});

impl Strategy for CsiDrivers {
    fn options(&self) -> &Options {
        &DRIVERS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        let Some(s) = ensure(obj, "spec") else { return };
        default_to(s, "attachRequired", true);
        for f in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
            default_to(s, f, false);
        }
        default_to(s, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        if items(&s["volumeLifecycleModes"]).is_empty() {
            set(s, "volumeLifecycleModes", vec![json!("Persistent")]);
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let meta = Path::new("metadata");
        pod::driver_name(text(&obj["metadata"]["name"]), &meta.child("name"), e);
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        for f in ["attachRequired", "podInfoOnMount", "storageCapacity"] {
            if !present(&spec[f]) {
                e.required(&p.child(f), "");
            }
        }
        let at = p.child("volumeLifecycleModes");
        for m in items(&spec["volumeLifecycleModes"]) {
            if !matches!(text(m), "Persistent" | "Ephemeral") {
                e.not_supported(&at, m, &["Persistent", "Ephemeral"]);
            }
        }
        let policies = &["File", "None", "ReadWriteOnceWithFSType"];
        rules::optional_one_of(&spec["fsGroupPolicy"], &p.child("fsGroupPolicy"), policies, e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        let p = Path::new("spec");
        for f in ["attachRequired", "volumeLifecycleModes"] {
            immutable(&new["spec"][f], &old["spec"][f], &p.child(f), e);
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &obj["spec"];
        let tokens = if present(&spec["tokenRequests"]) {
            items(&spec["tokenRequests"]).iter().map(|t| text(&t["audience"])).collect::<Vec<_>>().join(",")
        } else {
            UNSET.to_owned()
        };
        let modes: Vec<&str> = items(&spec["volumeLifecycleModes"]).iter().map(text).collect();
        let is = |f: &str| json!(flag(&spec[f]));
        vec![
            name(obj),
            json!(spec["attachRequired"].as_bool().unwrap_or(true)),
            is("podInfoOnMount"),
            is("storageCapacity"),
            json!(tokens),
            is("requiresRepublish"),
            or_none(&modes.join(",")),
            age(obj, now),
        ]
    }
}

/// The csinodes resource.
pub struct CsiNodes;

static NODES: LazyLock<Options> = LazyLock::new(|| Options {
    allow_unconditional_update: false,
    columns: columns![NAME, Column::integer("Drivers", "CSI drivers on the node."), AGE],
    delete_returns_object: true,
    ..Options::of(GROUP, "csinodes")
});

impl Strategy for CsiNodes {
    fn options(&self) -> &Options {
        &NODES
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(s) = ensure(obj, "spec")
            && let Some(o) = s.as_object_mut()
        {
            o.entry("drivers").or_insert(Value::Null);
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let p = Path::new("spec");
        let list = p.child("drivers");
        rules::unique(&obj["spec"]["drivers"], "name", &list, e);
        for (i, d) in items(&obj["spec"]["drivers"]).iter().enumerate() {
            let at = list.index(i);
            pod::driver_name(text(&d["name"]), &at.child("name"), e);
            rules::required(&d["nodeID"], &at.child("nodeID"), e);
            let allocatable = at.child("allocatable");
            rules::not_negative(&d["allocatable"]["count"], &allocatable.child("count"), e);
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(obj), json!(items(&obj["spec"]["drivers"]).len()), age(obj, now)]
    }
}

/// The csistoragecapacities resource.
pub struct CsiStorageCapacities;

static CAPACITIES: LazyLock<Options> =
    LazyLock::new(|| Options { allow_unconditional_update: false, ..Options::of(GROUP, "csistoragecapacities") });

impl Strategy for CsiStorageCapacities {
    fn options(&self) -> &Options {
        &CAPACITIES
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        for f in ["capacity", "maximumVolumeSize"] {
            if let Some(q) = obj.get_mut(f) {
                pod::canonical_quantity(q);
            }
        }
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let class = text(&obj["storageClassName"]);
        e.invalid_each(&Path::new("storageClassName"), class, is_dns1123_subdomain(class));
        for f in ["capacity", "maximumVolumeSize"] {
            if let Some(q) = rules::quantity(&obj[f], &Path::new(f), e)
                && q.signum() < 0
            {
                e.invalid(&Path::new(f), &obj[f], rules::NOT_NEGATIVE);
            }
        }
        rules::label_selector(&obj["nodeTopology"], &Path::new("nodeTopology"), e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        for f in ["nodeTopology", "storageClassName"] {
            immutable(&new[f], &old[f], &Path::new(f), e);
        }
    }
}

/// The volumeattachments resource.
pub struct VolumeAttachments;

static ATTACHMENTS: LazyLock<Options> = LazyLock::new(|| Options {
    allow_unconditional_update: false,
    columns: columns![
        NAME,
        Column::identifying("Attacher", "Who attaches."),
        Column::text("PV", "Volume that is attached."),
        Column::text("Node", "Node it is attached to."),
        Column::boolean("Attached", "Whether it is attached."),
        AGE,
    ],
    delete_returns_object: true,
    ..Options::of(GROUP, "volumeattachments")
});

impl Strategy for VolumeAttachments {
    fn options(&self) -> &Options {
        &ATTACHMENTS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(s) = ensure(obj, "status") {
            default_to(s, "attached", false);
        }
    }
    fn initial_status(&self) -> Value {
        json!({"attached": false})
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        pod::driver_name(text(&spec["attacher"]), &p.child("attacher"), e);
        let source = p.child("source");
        let (pv, inline) = (&spec["source"]["persistentVolumeName"], &spec["source"]["inlineVolumeSpec"]);
        if present(pv) && present(inline) {
            e.forbidden(&source, "must specify exactly one of inlineVolumeSpec and persistentVolumeName");
        } else if empty(pv) && !present(inline) {
            e.required(&source, "must specify exactly one of inlineVolumeSpec and persistentVolumeName");
        }
        let node = text(&spec["nodeName"]);
        e.invalid_each(&p.child("nodeName"), node, is_dns1123_subdomain(node));
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        if !same(&new["spec"], &old["spec"]) {
            e.invalid(&Path::new("spec"), &new["spec"], IMMUTABLE);
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &obj["spec"];
        vec![
            name(obj),
            json!(text(&spec["attacher"])),
            json!(text(&spec["source"]["persistentVolumeName"])),
            json!(text(&spec["nodeName"])),
            json!(flag(&obj["status"]["attached"])),
            age(obj, now),
        ]
    }
}

/// Who makes the volumes of a class.
fn provisioner(name: &str, p: &Path<'_>, e: &mut Errors) {
    if name.is_empty() {
        e.required(p, "");
    } else {
        e.invalid_each(p, name, is_qualified_name(&name.to_lowercase()));
    }
}

/// The volumeattributesclasses resource.
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
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(obj), json!(text(&obj["driverName"])), age(obj, now)]
    }
}
