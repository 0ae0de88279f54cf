//! The requirements for a definition. A new one must meet all of them. A changed one may keep violations of the old
//! one, since objects are stored by it.
use std::collections::HashSet;

use kelson_meta::tree::{flag, items, len, present};
use serde_json::Value;

/// The requirements for one definition.
pub(super) struct Options {
    pub recognized_review_version: bool,
    pub immutable_names: bool,
    pub schema: bool,
    pub valid_types: bool,
    pub structural: bool,
    pub pruned_defaults: bool,
    pub atomic_sets: bool,
    pub map_keys: bool,
    pub valid_ca_bundle: bool,
    /// Versions with an unchanged schema. Their rules may exceed the cost limit of a single rule.
    pub unchanged: HashSet<String>,
    /// Versions that may keep more selectable fields than a new version may have. An empty name means the whole
    /// definition.
    pub many_fields: HashSet<String>,
}

impl Options {
    pub fn of_create() -> Self {
        Self {
            recognized_review_version: true,
            immutable_names: false,
            schema: true,
            valid_types: true,
            structural: true,
            pruned_defaults: true,
            atomic_sets: true,
            map_keys: true,
            valid_ca_bundle: false,
            unchanged: HashSet::new(),
            many_fields: HashSet::new(),
        }
    }
}

/// Returns `openAPIV3Schema` of a version. Null if there is none.
pub(super) fn schema_of(version: &Value) -> &Value {
    &version["schema"]["openAPIV3Schema"]
}

/// Reports whether a test holds for any node of a schema.
pub(super) fn any_place(schema: &Value, test: &dyn Fn(&Value) -> bool) -> bool {
    if !schema.is_object() {
        return false;
    }
    if test(schema) {
        return true;
    }
    let one = ["not", "additionalProperties", "additionalItems"].iter().any(|key| any_place(&schema[key], test));
    let lists = ["allOf", "anyOf", "oneOf"].iter().any(|key| items(&schema[key]).iter().any(|s| any_place(s, test)));
    let elements = match &schema["items"] {
        Value::Array(list) => list.iter().any(|s| any_place(s, test)),
        element => any_place(element, test),
    };
    let maps = ["properties", "patternProperties", "definitions", "dependencies"]
        .iter()
        .filter_map(|key| schema[key].as_object())
        .any(|map| map.values().any(|s| any_place(s, test)));
    one || lists || elements || maps
}

/// Reports whether a schema has an extension of Kubernetes or a default. Both need a structural schema.
pub(super) fn wants_structural(schema: &Value) -> bool {
    any_place(schema, &|s| {
        flag(&s["x-kubernetes-embedded-resource"])
            || flag(&s["x-kubernetes-int-or-string"])
            || present(&s["x-kubernetes-preserve-unknown-fields"])
            || present(&s["x-kubernetes-list-type"])
            || len(&s["x-kubernetes-list-map-keys"]) > 0
            || len(&s["x-kubernetes-validations"]) > 0
            || present(&s["default"])
    })
}
