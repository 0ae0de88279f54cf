//! The keywords of a schema as fields of upstream's type (`apiextensions.JSONSchemaProps`), some of which are pointers.
use kelson_meta::tree::{empty, present};
use serde_json::Value;

/// Reports whether a keyword is set: some are set by any value except null, others by any value except the zero value
/// of their type.
pub(super) fn is_set(key: &str, value: &Value) -> bool {
    const BY_ANY_VALUE: [&str; 19] = [
        "$ref",
        "additionalItems",
        "additionalProperties",
        "default",
        "example",
        "externalDocs",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "not",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
    ];
    present(value) && (BY_ANY_VALUE.contains(&key) || !empty(value))
}
