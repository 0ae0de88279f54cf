//! ReplicaSets.
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{name_warning, replica_counts, restart_always, selector_and_template, wide};
use crate::metadata::immutable;
use crate::path::{Errors, Path};
use crate::pod;
use crate::rules;
use crate::strategy::{Column, Options, SCALE, Strategy};
use crate::table::{AGE, CONTAINERS, IMAGES, NAME, SELECTOR, age, name};
use crate::tree::{default_to, ensure, int0};

/// The replicasets resource.
pub struct ReplicaSets;

/// Columns shared with replication controllers.
pub(super) const COLUMNS: &[Column] = &[
    NAME,
    Column::integer("Desired", "Pods desired."),
    Column::integer("Current", "Pods that exist."),
    Column::integer("Ready", "Pods that are ready."),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

static OPTIONS: Options = Options {
    short_names: &["rs"],
    categories: &["all"],
    subresources: &["status", "scale"],
    generation: true,
    scale: Some(SCALE),
    columns: COLUMNS,
    fields: &["status.replicas"],
    ..Options::namespaced("apps", "replicasets", "ReplicaSet")
};

impl Strategy for ReplicaSets {
    fn options(&self) -> &'static Options {
        &OPTIONS
    }
    fn default(&self, _version: &str, obj: &mut Value) {
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
        selector_and_template(spec, &p, "empty selector is invalid for deployment", e);
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
    fn selectable_fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        vec![("status.replicas", int0(&obj["status"]["replicas"]).to_string())]
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
