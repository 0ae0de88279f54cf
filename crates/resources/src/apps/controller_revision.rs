//! ControllerRevisions: immutable snapshots of templates.
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::column::{AGE, Column, NAME};
use crate::metadata::immutable;
use crate::options::{Options, columns};
use crate::path::{Errors, Path};
use crate::rules;
use crate::strategy::Strategy;
use crate::table::{NONE, age, name};
use crate::tree::{flag, int0, items, present, text};

/// The strategy of controllerrevisions.
pub struct ControllerRevisions;

static OPTIONS: LazyLock<Options> = LazyLock::new(|| Options {
    columns: columns![
        NAME,
        Column::text("Controller", "Object the revision belongs to."),
        Column::text("Revision", "Number of the revision."),
        AGE,
    ],
    ..Options::of("apps", "controllerrevisions")
});

impl Strategy for ControllerRevisions {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        crate::tree::default_to(obj, "revision", 0);
    }
    fn check(&self, obj: &Value, e: &mut Errors) {
        rules::not_negative(&obj["revision"], &Path::new("revision"), e);
    }
    fn check_create(&self, obj: &Value, e: &mut Errors) {
        self.check(obj, e);
        if !present(&obj["data"]) {
            e.required(&Path::new("data"), "data is mandatory");
        } else if !obj["data"].is_object() {
            e.required(&Path::new("data"), "data must be a valid JSON object");
        }
    }
    fn check_update(&self, new: &Value, old: &Value, e: &mut Errors) {
        self.check(new, e);
        immutable(&new["data"], &old["data"], &Path::new("data"), e);
    }
    fn row(&self, obj: &Value, now: Timestamp) -> Vec<Value> {
        let owner = items(&obj["metadata"]["ownerReferences"]).iter().find(|o| flag(&o["controller"]));
        let controller = owner.map_or_else(
            || NONE.to_owned(),
            |o| {
                let group = text(&o["apiVersion"]).split_once('/').map_or("", |(g, _)| g);
                let kind = text(&o["kind"]).to_lowercase();
                let dot = if group.is_empty() { "" } else { "." };
                format!("{kind}{dot}{group}/{}", text(&o["name"]))
            },
        );
        vec![name(obj), json!(controller), json!(int0(&obj["revision"])), age(obj, now)]
    }
}
