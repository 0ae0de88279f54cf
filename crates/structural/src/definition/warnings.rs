//! Warnings about a definition.
use std::collections::BTreeSet;

use kelson_meta::tree::{flag, items, text};
use serde_json::Value;

use super::options::{any_place, schema_of};
use crate::schema::Format;

/// Returns warnings for unknown formats, except those that the old definition had.
pub fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let known = old.map(unrecognized).unwrap_or_default();
    unrecognized(new).difference(&known).map(|format| format!("unrecognized format {format:?}")).collect()
}

fn unrecognized(definition: &Value) -> BTreeSet<String> {
    let found = std::cell::RefCell::new(BTreeSet::new());
    let look = |place: &Value| {
        let format = text(&place["format"]);
        let ty = if flag(&place["x-kubernetes-int-or-string"]) { "" } else { text(&place["type"]) };
        if !format.is_empty() && Format::at(ty, format).is_none() {
            found.borrow_mut().insert(format.to_owned());
        }
        false
    };
    for version in items(&definition["spec"]["versions"]) {
        any_place(schema_of(version), &look);
    }
    found.into_inner()
}
