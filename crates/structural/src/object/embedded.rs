//! Validates that embedded objects have a version, a kind, and valid metadata (upstream
//! `pkg/apiserver/schema/objectmeta/validation.go`).
use kelson_meta::metadata;
use kelson_meta::path::{Errors, Path};
use kelson_meta::tree::{int, items, text};
use kelson_meta::{is_dns1035_label, is_dns1123_label, is_path_segment_name, is_qualified_name};
use serde_json::Value;

use crate::schema::{Flags, Node};

/// Returns the errors of embedded objects, in this value and below it.
pub fn check_embedded(value: &Value, node: &Node, path: &Path<'_>, e: &mut Errors) {
    if !node.is(Flags::BELOW_EMBEDDED) {
        return;
    }
    match value {
        Value::Object(fields) => {
            if node.is(Flags::EMBEDDED) {
                type_meta(value, path, e);
                if let Some(metadata) = fields.get("metadata") {
                    object_meta(metadata, &path.child("metadata"), e);
                }
            }
            for (key, value) in fields {
                if let Some(property) = node.property(key) {
                    check_embedded(value, property, &path.child(key), e);
                } else if let Some(values) = node.values_of_map() {
                    check_embedded(value, values, &path.key(key), e);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = node.items() else { return };
            for (i, element) in list.iter().enumerate() {
                check_embedded(element, items, &path.index(i), e);
            }
        }
        _ => {}
    }
}

fn type_meta(object: &Value, path: &Path<'_>, e: &mut Errors) {
    for key in ["apiVersion", "kind"] {
        if object.get(key).is_none() {
            e.required(&path.child(key), "");
        }
    }
    let mut word = |key: &str, rule: &dyn Fn(&str) -> Result<(), String>| {
        let at = path.child(key);
        match object.get(key) {
            None => {}
            Some(Value::String(s)) if s.is_empty() => e.invalid(&at, s, "must not be empty"),
            Some(Value::String(s)) => {
                if let Err(why) = rule(s) {
                    e.invalid(&at, s, why);
                }
            }
            Some(other) => e.invalid(&at, other, "must be a string"),
        }
    };
    word("apiVersion", &|version| match version.matches('/').count() {
        0 | 1 => Ok(()),
        _ => Err(format!("unexpected GroupVersion string: {version}")),
    });
    word("kind", &|kind| {
        is_dns1035_label(&kind.to_lowercase())
            .map_err(|why| format!("may have mixed case, but should otherwise match: {}", why.join(",")))
    });
}

/// Validates metadata. An embedded object needs no name, and counts as namespaced if it has a namespace.
fn object_meta(meta: &Value, path: &Path<'_>, e: &mut Errors) {
    for key in ["generateName", "name"] {
        let name = text(&meta[key]);
        if !name.is_empty() {
            e.invalid_each(&path.child(key), name, is_path_segment_name(name));
        }
    }
    let namespace = text(&meta["namespace"]);
    if !namespace.is_empty() {
        e.invalid_each(&path.child("namespace"), namespace, is_dns1123_label(namespace));
    }
    if let Some(generation) = int(&meta["generation"]).filter(|g| *g < 0) {
        e.invalid(&path.child("generation"), generation, "must be greater than or equal to 0");
    }
    metadata::common(meta, path, e);
    for finalizer in items(&meta["finalizers"]).iter().map(text) {
        e.invalid_each(&path.child("finalizers"), finalizer, is_qualified_name(finalizer));
    }
}
