//! CSI drivers, their nodes and their capacity.
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::{is_dns1123_subdomain, is_qualified_name};
use serde_json::{Value, json};

use super::GROUP;
use crate::column::{AGE, Column, NAME};
use crate::metadata::{IMMUTABLE, immutable};
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::{Context, Strategy, base_update};
use crate::table::{UNSET, age, name, or_none};
use crate::tree::{default_to, ensure, flag, int0, items, present, same, set, text};
use crate::volume_sources;

const NODE_ID_MAX: usize = 256;
const UPDATE_PERIOD_SECONDS_MIN: i64 = 10;
const TOKEN_SECONDS_MIN: i64 = 600;
const TOKEN_SECONDS_MAX: i64 = 1 << 32;

/// The strategy of csidrivers.
pub struct CsiDrivers;

static DRIVERS: LazyLock<Options> = LazyLock::new(|| Options {
    allow_unconditional_update: false,
    columns: columns![
        NAME,
        Column::boolean("AttachRequired", "Whether volumes are attached first."),
        Column::boolean("PodInfoOnMount", "Whether the driver receives information about the pod on mount."),
        Column::boolean("StorageCapacity", "Whether capacity steers scheduling."),
        Column::text("TokenRequests", "Audiences of the pod's tokens."),
        Column::boolean("RequiresRepublish", "Whether the driver republishes volumes periodically."),
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
    /// A new driver has no generation; each change of its spec counts.
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        base_update(&DRIVERS, new, old);
        if !same(&new["spec"], &old["spec"])
            && let Some(meta) = new.get_mut("metadata")
        {
            set(meta, "generation", int0(&old["metadata"]["generation"]) + 1);
        }
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
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        for (f, shown) in [
            ("attachRequired", "attachedRequired"),
            ("podInfoOnMount", "podInfoOnMount"),
            ("storageCapacity", "storageCapacity"),
            ("seLinuxMount", "seLinuxMount"),
        ] {
            if !present(&spec[f]) {
                e.required(&p.child(shown), "");
            }
        }
        token_requests(spec, &p, e);
        if let Some(seconds) = spec["nodeAllocatableUpdatePeriodSeconds"].as_i64()
            && seconds < UPDATE_PERIOD_SECONDS_MIN
        {
            let at = p.child("nodeAllocatableUpdatePeriodSeconds");
            e.invalid(&at, seconds, "must be greater than or equal to 10 seconds");
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
        for (f, shown) in [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")] {
            immutable(&new["spec"][f], &old["spec"][f], &p.child(shown), e);
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

/// Validates requests for pods' tokens: one for each audience.
fn token_requests(spec: &Value, p: &Path<'_>, e: &mut Errors) {
    let list = p.child("tokenRequests");
    let mut audiences = std::collections::BTreeSet::new();
    for (i, request) in items(&spec["tokenRequests"]).iter().enumerate() {
        let at = list.index(i);
        let audience = text(&request["audience"]);
        if !audiences.insert(audience) {
            e.duplicate(&at.child("audience"), audience);
            continue;
        }
        let Some(seconds) = request["expirationSeconds"].as_i64() else { continue };
        if seconds < TOKEN_SECONDS_MIN {
            e.invalid(&at.child("expirationSeconds"), seconds, "may not specify a duration less than 10 minutes");
        }
        if seconds > TOKEN_SECONDS_MAX {
            e.invalid(&at.child("expirationSeconds"), seconds, "may not specify a duration larger than 2^32 seconds");
        }
    }
    if present(&spec["serviceAccountTokenInSecrets"]) && audiences.is_empty() {
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        e.invalid(&p.child("serviceAccountTokenInSecrets"), &spec["serviceAccountTokenInSecrets"], why);
    }
}

/// The strategy of csinodes.
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
            volume_sources::driver_name(text(&d["name"]), &at.child("name"), e);
            if rules::required(&d["nodeID"], &at.child("nodeID"), e) && text(&d["nodeID"]).len() > NODE_ID_MAX {
                e.invalid(&at.child("nodeID"), &d["nodeID"], format!("must be {NODE_ID_MAX} characters or less"));
            }
            let keys = items(&d["topologyKeys"]);
            for (j, key) in keys.iter().enumerate() {
                // Upstream names the driver, not the key.
                rules::required(key, &at, e);
                if keys[..j].contains(key) {
                    e.duplicate(&at, key);
                }
                e.invalid_each(&at, text(key), is_qualified_name(text(key)));
            }
            let allocatable = at.child("allocatable");
            rules::not_negative(&d["allocatable"]["count"], &allocatable.child("count"), e);
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        let spec = Path::new("spec");
        for was in items(&old["spec"]["drivers"]) {
            for now in items(&new["spec"]["drivers"]).iter().filter(|now| now["name"] == was["name"]) {
                let fixed = |d: &Value, f: &str| d[f].clone();
                if ["nodeID", "topologyKeys"].iter().any(|f| !same(&fixed(now, f), &fixed(was, f))) {
                    e.invalid(&spec.child("drivers"), now, IMMUTABLE);
                }
            }
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(obj), json!(items(&obj["spec"]["drivers"]).len()), age(obj, now)]
    }
}

/// The strategy of csistoragecapacities.
pub struct CsiStorageCapacities;

static CAPACITIES: LazyLock<Options> =
    LazyLock::new(|| Options { allow_unconditional_update: false, ..Options::of(GROUP, "csistoragecapacities") });

impl Strategy for CsiStorageCapacities {
    fn options(&self) -> &Options {
        &CAPACITIES
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let class = text(&obj["storageClassName"]);
        e.invalid_each(&Path::new("storageClassName"), class, is_dns1123_subdomain(class));
        if let Some(q) = rules::quantity(&obj["capacity"], &Path::new("capacity"), e)
            && q.signum() < 0
        {
            e.invalid(&Path::new("capacity"), &obj["capacity"], rules::NOT_NEGATIVE);
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
