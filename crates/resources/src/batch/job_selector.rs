//! Labels and selector that a job's pods get from its name and UID.
use serde_json::{Value, json};

use crate::path::{Errors, Path};
use crate::rules;
use crate::tree::{default_to, ensure, flag, present, text};

/// Labels with the job's name and UID, the old one first.
const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];
const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];

/// Adds name and UID as labels of the pods, and the UID as the selector; both are set before.
pub(super) fn generate_selector(obj: &mut Value) {
    let (job, uid) = (obj["metadata"]["name"].clone(), obj["metadata"]["uid"].clone());
    let (job, uid) = (text(&job).to_owned(), text(&uid).to_owned());
    let Some(spec) = obj.get_mut("spec") else { return };
    let labels = ensure(spec, "template").and_then(|t| ensure(t, "metadata")).and_then(|m| ensure(m, "labels"));
    if let Some(labels) = labels {
        for l in NAME_LABELS {
            default_to(labels, l, job.clone());
        }
        for l in UID_LABELS {
            default_to(labels, l, uid.clone());
        }
    }
    if let Some(m) = ensure(spec, "selector").and_then(|s| ensure(s, "matchLabels")) {
        default_to(m, UID_LABELS[1], uid);
    }
}

/// Reports whether a job's pods have both of the newer labels; very old jobs only have the older ones.
pub(super) fn is_prefixed(job: &Value) -> bool {
    let labels = &job["spec"]["template"]["metadata"]["labels"];
    labels.get(NAME_LABELS[1]).is_some() && labels.get(UID_LABELS[1]).is_some()
}

/// Validates generated labels and selector.
pub(super) fn check_generated(obj: &Value, prefixed: bool, e: &mut Errors) {
    let spec = &obj["spec"];
    if flag(&spec["manualSelector"]) || !present(&spec["selector"]) {
        return;
    }
    let (job, uid) = (text(&obj["metadata"]["name"]), text(&obj["metadata"]["uid"]));
    if uid.is_empty() {
        let meta = Path::new("metadata");
        e.required(&meta.child("uid"), "");
    }
    let root = Path::new("spec");
    let template = root.child("template");
    let meta = template.child("metadata");
    let p = meta.child("labels");
    let labels = &spec["template"]["metadata"]["labels"];
    let mut expected = serde_json::Map::new();
    for i in 0..if prefixed { 2 } else { 1 } {
        for (key, value) in [(UID_LABELS[i], uid), (NAME_LABELS[i], job)] {
            expected.insert(key.to_owned(), json!(value));
            match labels.get(key) {
                None => e.required(&p.key(key), &format!("must be '{value}'")),
                Some(v) if text(v) != value => e.invalid(&p.key(key), labels, format!("must be '{value}'")),
                Some(_) => {}
            }
        }
    }
    let mut faults = Errors::new();
    rules::label_selector(&spec["selector"], &root.child("selector"), &mut faults);
    if faults.is_empty() && !rules::selector_matches(&spec["selector"], &Value::Object(expected)) {
        e.invalid(&root.child("selector"), &spec["selector"], "`selector` not auto-generated");
    }
}
