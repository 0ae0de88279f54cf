//! ReplicationControllers (legacy group), whose selector is a label map.
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{replica_counts, restart_always};
use crate::options::{Options, ScalePaths, texts};
use crate::path::{Errors, Path};
use crate::pod;
use crate::rules;
use crate::strategy::{Strategy, field_text};
use crate::table::{age, containers, label_map, name};
use crate::tree::{default_to, empty, ensure, entries, int0, present, set};

/// The strategy of replicationcontrollers.
pub struct ReplicationControllers;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    generation: true,
    scale: Some(ScalePaths::usual()),
    columns: super::replica_set::COLUMNS.into(),
    fields: texts!["status.replicas"],
    orphans_dependents: true,
    ..Options::of("", "replicationcontrollers")
});

impl Strategy for ReplicationControllers {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(s) = ensure(obj, "status") {
            default_to(s, "replicas", 0);
        }
        let Some(spec) = ensure(obj, "spec") else { return };
        default_to(spec, "replicas", 1);
        if let Some(t) = crate::tree::object_mut(spec, "template") {
            pod::default_template(t);
        }
        let labels = spec["template"]["metadata"]["labels"].clone();
        if !present(&labels) {
            return;
        }
        if empty(&spec["selector"]) {
            set(spec, "selector", labels.clone());
        }
        if let Some(m) = ensure(obj, "metadata")
            && empty(&m["labels"])
        {
            set(m, "labels", labels);
        }
    }
    fn initial_status(&self) -> Value {
        json!({"replicas": 0})
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        let (spec, p) = (&obj["spec"], Path::new("spec"));
        rules::not_negative(&spec["minReadySeconds"], &p.child("minReadySeconds"), e);
        if empty(&spec["selector"]) {
            e.required(&p.child("selector"), "");
        }
        rules::not_negative(&spec["replicas"], &p.child("replicas"), e);
        let t = p.child("template");
        if !present(&spec["template"]) {
            return e.required(&t, "");
        }
        let labels = &spec["template"]["metadata"]["labels"];
        if entries(&spec["selector"]).any(|(k, v)| labels.get(k) != Some(v)) {
            let meta = t.child("metadata");
            e.invalid(&meta.child("labels"), labels, "`selector` does not match template `labels`");
        }
        pod::check_template(&spec["template"], &t, e);
        restart_always(spec, "ReplicationController", &p, e);
    }
    fn check_subresource_update(&self, _subresource: &str, new: &Value, _old: &Value, e: &mut Errors) {
        replica_counts(&new["status"], &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"], e);
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
        let (names, images) = containers(&spec["template"]["spec"]);
        vec![
            name(obj),
            json!(int0(&spec["replicas"])),
            json!(int0(&status["replicas"])),
            json!(int0(&status["readyReplicas"])),
            age(obj, now),
            names,
            images,
            json!(label_map(&spec["selector"])),
        ]
    }
}
