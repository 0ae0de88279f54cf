//! Validates that a schema is structural (KEP-1979, upstream `pkg/apiserver/schema/validation.go`, `complete.go`): each
//! node has one type, and clauses refer only to declared nodes.
use kelson_meta::path::{Errors, Path};
use kelson_meta::tree::{empty, entries, flag, items, len, present, text};
use serde_json::Value;

use super::keywords::is_set;
use super::patterns;
use crate::schema::is_either;

const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Returns why a schema is not structural, in upstream's order. Schemas are parsed, so their depth is bounded.
pub(super) fn check(tree: &Value, path: &Path<'_>, e: &mut Errors) {
    let mut found = Errors::new();
    place(tree, Level::Root, path, &mut found);
    complete(tree, tree, path, path, &mut found);
    let mut found = found.finish();
    found.0.sort_by_cached_key(ToString::to_string);
    e.extend(found);
}

fn place(tree: &Value, level: Level, path: &Path<'_>, e: &mut Errors) {
    let ty = text(&tree["type"]);
    if ty == "array" && !present(&tree["items"]) {
        e.required(&path.child("items"), "must be specified");
    }
    if tree["items"].is_object() {
        place(&tree["items"], Level::Item, &path.child("items"), e);
    }
    for (name, property) in entries(&tree["properties"]) {
        place(property, Level::Field, &path.child("properties").key(name), e);
    }
    let additional = &tree["additionalProperties"];
    if present(additional) {
        let at = path.child("additionalProperties");
        if level == Level::Root {
            e.forbidden(&at, "must not be used at the root");
        }
        if additional.is_object() {
            place(additional, Level::Field, &at, e);
        }
    }
    if flag(&tree[INT_OR_STRING]) {
        for key in [PRESERVE, EMBEDDED] {
            if flag(&tree[key]) {
                e.invalid(&path.child(key), true, format!("must be false if {INT_OR_STRING} is true"));
            }
        }
    }
    clauses(tree, is_either(&tree["anyOf"]), is_either(&tree["allOf"][0]["anyOf"]), path, e);
    types(tree, ty, level, path, e);
    own_fields(tree, level, path, e);
}

fn types(tree: &Value, ty: &str, level: Level, path: &Path<'_>, e: &mut Errors) {
    let at = path.child("type");
    let embedded = flag(&tree[EMBEDDED]);
    if embedded && ty != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        if ty.is_empty() { e.required(&at, why) } else { e.invalid(&at, ty, why) }
    } else if ty.is_empty() && !flag(&tree[INT_OR_STRING]) && !flag(&tree[PRESERVE]) {
        let why = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        e.required(&at, why);
    }
    if embedded && present(&tree["additionalProperties"]) {
        let why = "must not be used if x-kubernetes-embedded-resource is set";
        e.forbidden(&path.child("additionalProperties"), why);
    }
    if level == Level::Root && !ty.is_empty() && ty != "object" {
        e.invalid(&at, ty, "must be object at the root");
    }
}

/// Validates the fields that every object has: they have fixed types, and metadata may have few keywords.
fn own_fields(tree: &Value, level: Level, path: &Path<'_>, e: &mut Errors) {
    let properties = &tree["properties"];
    let list = path.child("properties");
    let is_object = level == Level::Root || flag(&tree[EMBEDDED]);
    if is_object {
        for (key, wanted) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
            if let Some(property) = properties.get(key).filter(|p| text(&p["type"]) != wanted) {
                e.invalid(&list.key(key).child("type"), text(&property["type"]), format!("must be {wanted}"));
            }
        }
    }
    if level == Level::Root
        && let Some(metadata) = properties.get("metadata")
    {
        let only_names = entries(&metadata["properties"]).all(|(name, _)| name == "name" || name == "generateName");
        let says_more = |(key, value): (&String, &Value)| {
            !matches!(key.as_str(), "type" | "default" | "properties") && is_set(key, value)
        };
        if !only_names || entries(metadata).any(says_more) {
            let why =
                "must not specify anything other than name and generateName, but metadata is implicitly specified";
            e.forbidden(&list.key("metadata"), why);
        }
    }
    if flag(&tree[EMBEDDED]) && !flag(&tree[PRESERVE]) && len(properties) == 0 {
        let why =
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        e.required(&list, why);
    }
}

fn clauses(tree: &Value, skip_any: bool, skip_first_all: bool, path: &Path<'_>, e: &mut Errors) {
    for (key, skip) in [("anyOf", skip_any), ("allOf", false), ("oneOf", false)] {
        if skip {
            continue;
        }
        for (i, clause) in items(&tree[key]).iter().enumerate() {
            let skip_any = key == "allOf" && skip_first_all && i == 0;
            nested(clause, skip_any, &path.child(key).index(i), e);
        }
    }
    if tree["not"].is_object() {
        nested(&tree["not"], false, &path.child("not"), e);
    }
    patterns::check(text(&tree["pattern"]), path, e);
}

/// Validates a clause, which restricts values and must not define structure.
fn nested(tree: &Value, skip_any: bool, path: &Path<'_>, e: &mut Errors) {
    clauses(tree, skip_any, false, path, e);
    if tree["items"].is_object() {
        nested(&tree["items"], false, &path.child("items"), e);
    }
    for (name, property) in entries(&tree["properties"]) {
        nested(property, false, &path.child("properties").key(name), e);
    }
    for (key, wanted) in [
        ("type", "empty"),
        ("additionalProperties", "undefined"),
        ("default", "undefined"),
        ("title", "empty"),
        ("description", "empty"),
        ("nullable", "false"),
        (PRESERVE, "false"),
        (EMBEDDED, "false"),
        (INT_OR_STRING, "false"),
        ("x-kubernetes-list-map-keys", "empty"),
        ("x-kubernetes-list-type", "undefined"),
        ("x-kubernetes-map-type", "undefined"),
        ("x-kubernetes-validations", "empty"),
    ] {
        let value = &tree[key];
        let set = match key {
            "default" | "x-kubernetes-list-type" | "x-kubernetes-map-type" => present(value),
            "additionalProperties" => present(value) && *value != false,
            _ => !empty(value),
        };
        if set {
            e.forbidden(&path.child(key), format!("must be {wanted} to be structural"));
        }
    }
    if tree["properties"].get("metadata").is_some() {
        e.forbidden(&path.child("properties").key("metadata"), "must not be specified in a nested context");
    }
}

/// Validates that every node in a clause is declared. `at` is the path of the declared node and `path` that of the
/// clause.
fn complete(clause: &Value, declared: &Value, at: &Path<'_>, path: &Path<'_>, e: &mut Errors) {
    if clause["not"].is_object() {
        complete_nested(&clause["not"], declared, at, &path.child("not"), e);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for (i, clause) in items(&clause[key]).iter().enumerate() {
            complete_nested(clause, declared, at, &path.child(key).index(i), e);
        }
    }
}

fn complete_nested(clause: &Value, declared: &Value, at: &Path<'_>, path: &Path<'_>, e: &mut Errors) {
    complete(clause, declared, at, path, e);
    let missing = |at: &Path<'_>, path: &Path<'_>, e: &mut Errors| {
        e.required(at, &format!("because it is defined in {}", path.field()));
    };
    if clause["items"].is_object() {
        let (at, path) = (at.child("items"), path.child("items"));
        match &declared["items"] {
            declared @ Value::Object(_) => complete_nested(&clause["items"], declared, &at, &path, e),
            _ => missing(&at, &path, e),
        }
    }
    for (name, property) in entries(&clause["properties"]) {
        let (list, of_clause) = (at.child("properties"), path.child("properties"));
        let (at, path) = (list.key(name), of_clause.key(name));
        match declared["properties"].get(name) {
            Some(declared) => complete_nested(property, declared, &at, &path, e),
            None => missing(&at, &path, e),
        }
    }
}
