//! Shapes, documents, and what schemas cost.
use super::schema;
use crate::publish::openapi::{Dialect, definition};
use crate::publish::shape;
use crate::{SchemaError, Structural};
use kelson_schema::{Descriptions, ListType};
use serde_json::{Value, json};

#[test]
fn shape_says_lists_and_atomic_maps() {
    let tree = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"],
                  "items": {"type": "object", "properties": {"port": {"type": "integer", "default": 80}}}},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}}}}}});
    let root = shape(schema(tree).resource());
    let spec = root.child("spec").unwrap();
    let ports = spec.child("ports").unwrap();
    assert_eq!((ports.list_type(), ports.map_keys()), (ListType::Map, vec!["port".to_owned()]));
    assert_eq!(ports.element().child("port").unwrap().default_value(), Some(json!(80)));
    assert_eq!(spec.child("tags").unwrap().list_type(), ListType::Set);
    assert!(spec.child("whole").unwrap().is_atomic());
    let meta = root.child("metadata").unwrap();
    assert_eq!(meta.child("finalizers").unwrap().list_type(), ListType::Set, "the root is an object as any");
    assert!(root.has_field("kind") && root.has_field("spec") && !root.has_field("status"));
}

#[test]
fn apply_refuses_fields_only_where_there_is_no_room_for_them() {
    let (x, open) = (json!({"x": {"type": "string"}}), "x-kubernetes-preserve-unknown-fields");
    for (place, inner, closed) in [
        (json!({"type": "object", "properties": x}), "", true),
        (json!({"type": "object"}), "", false),
        (json!({"type": "object", "properties": x, open: true}), "", false),
        (json!({"type": "object", open: true, "properties": {"in": {"type": "object", "properties": x}}}), "in", false),
        (json!({"type": "object", "additionalProperties": {"type": "object", "properties": x}}), "any", true),
        (json!({"type": "object", "additionalProperties": {"type": "string"}}), "", false),
        (json!({"type": "object", "properties": x, "additionalProperties": false}), "", true),
    ] {
        let tree = json!({"type": "object", "properties": {"spec": place}});
        let root = shape(schema(tree).resource());
        let mut at = root.child("spec").unwrap();
        if !inner.is_empty() {
            at = at.child(inner).unwrap();
        }
        assert_eq!(at.child("unknown").is_none(), closed, "{place} {inner}");
        assert!(root.child("kind").is_some() && root.child("odd").is_none());
    }
}

fn published(tree: Value, dialect: Dialect) -> Value {
    definition(Some(&tree), false, dialect, &Descriptions::load())
}

#[test]
fn swagger_leaves_out_what_it_cannot_say() {
    let spec = json!({"type": "object", "required": ["n", "s"], "properties": {
        "n": {"type": "object", "nullable": true, "properties": {"x": {"type": "string"}}},
        "s": {"type": "string", "description": "a text", "oneOf": [{"pattern": "a"}, {"pattern": "b"}]},
        "p": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"x": {"type": "string"}}},
        "i": {"x-kubernetes-int-or-string": true}}});
    let tree = json!({"type": "object", "properties": {"spec": spec}});
    let v2 = published(tree.clone(), Dialect::V2);
    assert_eq!(
        v2["properties"]["spec"],
        json!({"type": "object", "required": ["s"], "properties": {
            "n": {}, "s": {"type": "string", "description": "a text"},
            "p": {"x-kubernetes-preserve-unknown-fields": true}, "i": {"x-kubernetes-int-or-string": true}}})
    );
    let v3 = published(tree, Dialect::V3);
    let mut want = spec.clone();
    want["properties"]["i"]["anyOf"] = json!([{"type": "integer"}, {"type": "string"}]);
    assert_eq!(v3["properties"]["spec"], want);
    assert_eq!(v3["properties"]["kind"]["type"], "string");
    let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    assert_eq!(v3["properties"]["metadata"]["allOf"][0]["$ref"], format!("#/components/schemas/{meta}"));
    assert_eq!(v2["properties"]["metadata"]["$ref"], format!("#/definitions/{meta}"));
}

#[test]
fn what_is_open_at_the_root_says_only_that() {
    let tree = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}});
    assert_eq!(published(tree.clone(), Dialect::V2), json!({"type": "object"}));
    assert!(published(tree, Dialect::V3)["properties"]["a"].is_object());
    let embedded = json!({"type": "object", "properties": {"t": {"type": "object", "x-kubernetes-embedded-resource": true,
        "properties": {"spec": {"type": "object"}}}}});
    let t = &published(embedded, Dialect::V3)["properties"]["t"];
    assert_eq!(t["required"], json!(["kind", "apiVersion"]));
    assert!(t["properties"]["metadata"]["allOf"].is_array());
}

#[test]
fn equal_places_are_one() {
    let template = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "string"}}}});
    let (one, two) = (schema(template.clone()), schema(template));
    assert!(std::sync::Arc::ptr_eq(one.declared(), two.declared()));
    // A hundred copies of a large structure cost one and a pointer each.
    let large = json!({"type": "object", "properties":
        (0..200).map(|i| (format!("field{i}"), json!({"type": "string", "description": "x".repeat(500), "maxLength": i}))).collect::<serde_json::Map<_, _>>()});
    let copies = json!({"type": "object", "properties":
        (0..100).map(|i| (format!("copy{i}"), large.clone())).collect::<serde_json::Map<_, _>>()});
    assert!(copies.to_string().len() > 10_000_000);
    let bytes = schema(copies).bytes();
    assert!(bytes < 100_000, "{bytes}");
}

#[test]
fn what_cannot_be_structural_is_refused() {
    for (tree, why) in [
        (json!({"$ref": "#/x"}), "OpenAPIV3Schema '$ref' is not supported"),
        (json!({"properties": {"a": {"definitions": {"d": {}}}}}), "OpenAPIV3Schema 'definitions' is not supported"),
        (json!({"items": [{}]}), "OpenAPIV3Schema 'items' must be a schema, but is an array"),
        (
            json!({"x-kubernetes-preserve-unknown-fields": false}),
            "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined",
        ),
    ] {
        assert_eq!(Structural::parse(&tree).unwrap_err().to_string(), why);
    }
    let mut deep = json!({"type": "string"});
    for _ in 0..300 {
        deep = json!({"type": "array", "items": deep});
    }
    assert_eq!(Structural::parse(&deep), Err(SchemaError::TooDeep));
}
