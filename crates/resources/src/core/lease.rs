//! Leases and lease candidates (coordination.k8s.io).
use std::sync::LazyLock;

use jiff::Timestamp;
use kelson_meta::is_config_map_key;
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME};
use crate::metadata::immutable;
use crate::names::NameRule;
use crate::options::{Durability, Options, columns};
use crate::path::{Errors, Path};
use crate::strategy::Strategy;
use crate::table::{age, name};
use crate::tree::{ensure, int, text};

/// The strategy of leases.
pub struct Leases;

static LEASES: LazyLock<Options> = LazyLock::new(|| Options {
    allow_create_on_update: true,
    allow_unconditional_update: false,
    columns: columns![NAME, Column::text("Holder", "Holder of the lease."), AGE],
    durability: Durability::Relaxed,
    ..Options::of("coordination.k8s.io", "leases")
});

impl Strategy for Leases {
    fn options(&self) -> &Options {
        &LEASES
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        ensure(obj, "spec");
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let p = Path::new("spec");
        let spec = &obj["spec"];
        if let Some(n) = int(&spec["leaseDurationSeconds"])
            && n <= 0
        {
            e.invalid(&p.child("leaseDurationSeconds"), n, "must be greater than 0");
        }
        crate::rules::not_negative(&spec["leaseTransitions"], &p.child("leaseTransitions"), e);
        let preferred = text(&spec["preferredHolder"]);
        if !preferred.is_empty() && text(&spec["strategy"]).is_empty() {
            e.forbidden(&p.child("preferredHolder"), "may only be specified if `strategy` is defined");
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(obj), json!(text(&obj["spec"]["holderIdentity"])), age(obj, now)]
    }
}

/// The strategy of leasecandidates.
pub struct LeaseCandidates;

static CANDIDATES: LazyLock<Options> = LazyLock::new(|| Options {
    name: NameRule::Any,
    allow_create_on_update: true,
    allow_unconditional_update: false,
    columns: columns![
        NAME,
        Column::text("LeaseName", "Lease that the candidate competes for."),
        Column::text("BinaryVersion", "Version of the candidate."),
        Column::text("EmulationVersion", "Version the candidate acts as."),
        AGE,
    ],
    ..Options::of("coordination.k8s.io", "leasecandidates")
});

impl Strategy for LeaseCandidates {
    fn options(&self) -> &Options {
        &CANDIDATES
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let n = text(&obj["metadata"]["name"]);
        let meta = Path::new("metadata");
        e.invalid_each(&meta.child("name"), n, is_config_map_key(n));
        let p = Path::new("spec");
        crate::rules::required(&obj["spec"]["leaseName"], &p.child("leaseName"), e);
        crate::rules::required(&obj["spec"]["binaryVersion"], &p.child("binaryVersion"), e);
        crate::rules::required(&obj["spec"]["strategy"], &p.child("strategy"), e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        let p = Path::new("spec");
        immutable(&new["spec"]["leaseName"], &old["spec"]["leaseName"], &p.child("leaseName"), e);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &obj["spec"];
        let cell = |f: &str| json!(text(&spec[f]));
        vec![name(obj), cell("leaseName"), cell("binaryVersion"), cell("emulationVersion"), age(obj, now)]
    }
}
