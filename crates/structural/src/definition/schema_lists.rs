//! Requirements of the extensions for lists and maps.
use std::collections::HashSet;

use kelson_meta::path::{Errors, Path};
use kelson_meta::tree::{flag, items, len, present, text};
use serde_json::Value;

use super::options::Options;

const LIST_TYPE: &str = "x-kubernetes-list-type";
const LIST_KEYS: &str = "x-kubernetes-list-map-keys";
const MAP_TYPE: &str = "x-kubernetes-map-type";
const OF_SET: &str = "must be atomic as item of a list with x-kubernetes-list-type=set";

pub(super) fn check(tree: &Value, options: &Options, path: &Path<'_>, e: &mut Errors) {
    map_type(tree, path, e);
    list_type(tree, options, path, e);
    let keys = items(&tree[LIST_KEYS]);
    if !keys.is_empty() {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        match tree[LIST_TYPE].as_str() {
            None => e.required(&path.child(LIST_TYPE), why),
            Some("map") => {}
            Some(other) => e.invalid(&path.child(LIST_TYPE), other, why),
        }
    }
    if tree[LIST_TYPE] == "map" {
        list_map(tree, keys, path, e);
    }
    if options.map_keys {
        keys_always_there(tree, path, e);
    }
}

fn map_type(tree: &Value, path: &Path<'_>, e: &mut Errors) {
    let Some(map_type) = tree[MAP_TYPE].as_str() else { return };
    must_be(tree, "object", MAP_TYPE, path, e);
    if !matches!(map_type, "atomic" | "granular") {
        e.not_supported(&path.child(MAP_TYPE), map_type, &["atomic", "granular"]);
    }
}

fn must_be(tree: &Value, wanted: &str, because: &str, path: &Path<'_>, e: &mut Errors) -> bool {
    let why = format!("must be {wanted} if {because} is specified");
    match text(&tree["type"]) {
        ty if ty == wanted => return true,
        "" => e.required(&path.child("type"), &why),
        other => e.invalid(&path.child("type"), other, why),
    }
    false
}

fn list_type(tree: &Value, options: &Options, path: &Path<'_>, e: &mut Errors) {
    let Some(list_type) = tree[LIST_TYPE].as_str() else { return };
    if must_be(tree, "array", LIST_TYPE, path, e) && options.atomic_sets && has_non_atomic_set(tree) {
        let of_items = path.child("items");
        // Both messages contain the list's type, as upstream.
        let shown = &tree["items"][LIST_TYPE];
        let key = if tree["items"]["type"] == "array" { LIST_TYPE } else { MAP_TYPE };
        e.invalid(&of_items.child(key), shown, OF_SET);
    }
    if !matches!(list_type, "atomic" | "set" | "map") {
        e.not_supported(&path.child(LIST_TYPE), list_type, &["atomic", "set", "map"]);
    }
}

/// Reports whether items of a set are lists or objects with separately owned parts, so that they cannot be compared as
/// values.
pub(super) fn has_non_atomic_set(tree: &Value) -> bool {
    let element = &tree["items"];
    tree[LIST_TYPE] == "set"
        && match text(&element["type"]) {
            "array" => present(&element[LIST_TYPE]) && element[LIST_TYPE] != "atomic",
            "object" => element[MAP_TYPE] != "atomic",
            _ => false,
        }
}

fn list_map(tree: &Value, keys: &[Value], path: &Path<'_>, e: &mut Errors) {
    let keys_path = path.child(LIST_KEYS);
    if keys.is_empty() {
        e.required(&keys_path, "must not be empty if x-kubernetes-list-type is map");
    }
    let at = path.child("items");
    let element = match &tree["items"] {
        Value::Null => return e.required(&at, "must have a schema if x-kubernetes-list-type is map"),
        element @ Value::Object(_) => element,
        other => return e.invalid(&at, other, "must only have a single schema if x-kubernetes-list-type is map"),
    };
    let ty = text(&element["type"]);
    if ty != "object" {
        return e.invalid(&at.child("type"), ty, "must be object if parent array's x-kubernetes-list-type is map");
    }
    let mut seen = HashSet::new();
    for key in keys.iter().map(text) {
        match element["properties"].get(key) {
            Some(property) if matches!(text(&property["type"]), "array" | "object") => {
                let properties = at.child("properties");
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                e.invalid(&properties.key(key).child("type"), ty, why);
            }
            Some(_) => {}
            None => e.invalid(&keys_path, keys, "entries must all be names of item properties"),
        }
        if !seen.insert(key) {
            e.invalid(&keys_path, keys, "must not contain duplicate entries");
        }
    }
}

/// Validates that the keys of a list of type map are required or have defaults, and that neither they nor elements are
/// null.
fn keys_always_there(tree: &Value, path: &Path<'_>, e: &mut Errors) {
    let element = &tree["items"];
    let list_type = text(&tree[LIST_TYPE]);
    if !element.is_object() || !matches!(list_type, "set" | "map") {
        return;
    }
    let at = path.child("items");
    if flag(&element["nullable"]) {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        e.forbidden(&at.child("nullable"), why);
    }
    if list_type != "map" || len(&element["properties"]) == 0 {
        return;
    }
    let properties = at.child("properties");
    for key in items(&tree[LIST_KEYS]).iter().map(text) {
        let Some(property) = element["properties"].get(key) else { continue };
        let required = items(&element["required"]).iter().any(|r| text(r) == key);
        let of_key = properties.key(key);
        if !required && !present(&property["default"]) {
            let why =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            e.required(&of_key.child("default"), why);
        }
        if flag(&property["nullable"]) {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            e.forbidden(&of_key.child("nullable"), why);
        }
    }
}

pub(super) fn has_invalid_keys(tree: &Value) -> bool {
    let mut e = Errors::new();
    keys_always_there(tree, &Path::new(""), &mut e);
    !e.is_empty()
}
