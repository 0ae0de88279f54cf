//! ReplicaSets.
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{OF_DEPLOYMENTS, name_warning, replica_counts, restart_always, selector_and_template, wide};
use crate::column::{AGE, CONTAINERS, Column, IMAGES, NAME, SELECTOR};
use crate::metadata::immutable;
use crate::options::{Options, ScalePaths, texts};
use crate::path::{Errors, Path};
use crate::pod;
use crate::rules;
use crate::strategy::{Strategy, field_text};
use crate::table::{age, name};
use crate::tree::{default_to, ensure, int0};

/// The strategy of replicasets.
pub struct ReplicaSets;

/// The columns, which replication controllers have as well.
pub(super) const COLUMNS: &[Column] = &[
    NAME,
    Column::integer("Desired", "Number of desired pods."),
    Column::integer("Current", "Current number of pods."),
    Column::integer("Ready", "Number of ready pods."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    scale: Some(ScalePaths::usual()),
    columns: COLUMNS.into(),
    // The documentation of field selectors lists it; the reference rejects it.
    fields: texts!["status.replicas"],
    ..Options::of("apps", "replicasets")
});

impl Strategy for ReplicaSets {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(s) = ensure(obj, "status") {
            default_to(s, "replicas", 0);
        }
        let Some(spec) = ensure(obj, "spec") else { return };
        default_to(spec, "replicas", 1);
        if let Some(t) = ensure(spec, "template") {
            pod::default_template(t);
        }
    }
    fn initial_status(&self) -> Value {
        json!({"replicas": 0})
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        rules::not_negative(&spec["replicas"], &p.child("replicas"), e);
        rules::not_negative(&spec["minReadySeconds"], &p.child("minReadySeconds"), e);
        selector_and_template(spec, &p, &OF_DEPLOYMENTS, e);
        restart_always(spec, "ReplicaSet", &p, e);
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        let p = Path::new("spec");
        immutable(&new["spec"]["selector"], &old["spec"]["selector"], &p.child("selector"), e);
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, _old: &Value, e: &mut Errors) {
        replica_counts(&new["status"], &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"], e);
    }
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut out = name_warning(new, old, "Pod names and hostnames");
        out.extend(pod::template_warnings(&new["spec"]["template"], old.map(|o| &o["spec"]["template"])));
        out
    }
    fn field_value(&self, obj: &Value, field: &str) -> String {
        // A status without the count means zero.
        match field {
            "status.replicas" => int0(&obj["status"]["replicas"]).to_string(),
            _ => field_text(obj, field),
        }
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&obj["spec"], &obj["status"]);
        let [names, images, selector] = wide(spec);
        vec![
            name(obj),
            json!(int0(&spec["replicas"])),
            json!(int0(&status["replicas"])),
            json!(int0(&status["readyReplicas"])),
            age(obj, now),
            names,
            images,
            selector,
        ]
    }
}
