//! What is demanded of a definition: all of a new one; of a changed one not what the old one broke already, since objects are
//! stored by it.
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
    /// Versions with an unchanged schema, whose single rules may exceed the cost limit.
    pub unchanged: HashSet<String>,
    /// Versions (empty for all together) that may keep more selectable fields than a new one may have.
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

/// `openAPIV3Schema` of a version; null when there is none.
pub(super) fn schema_of(version: &Value) -> &Value {
    &version["schema"]["openAPIV3Schema"]
}

/// Whether a test holds for any place of a schema, wherever a schema may have schemas.
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

/// Whether a schema has an extension of Kubernetes, or a default: both mean something in structural schemas only.
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
