//! What is demanded of a definition: all of a new one; of a changed one not what the old one broke already, since objects are
//! stored by it.
use std::collections::HashSet;

use kelson_meta::path::{Errors, Path};
use kelson_meta::tree::{flag, items, len, present, same, text};
use serde_json::Value;

use super::schema_lists::{has_invalid_keys, has_non_atomic_set};
use super::spec::Spec;
use super::{conversion, defaults, structural, versions};
use crate::Structural;

/// The demands.
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
    /// Versions whose schema did not change: single rules of theirs may cost what they cost.
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

    pub fn of_update(new: &Value, old: &Value) -> Self {
        let spec = &old["spec"];
        let schemas = || items(&spec["versions"]).iter().map(schema_of);
        let any = |test: &dyn Fn(&Value) -> bool| schemas().any(|s| any_place(s, test));
        let reviews = items(&spec["conversion"]["webhook"]["conversionReviewVersions"]);
        let established = is_established(old);
        let whole = |schema: &Value| schema.is_null() || is_structural(schema);
        Self {
            recognized_review_version: reviews.is_empty() || reviews.iter().any(conversion::is_recognized),
            immutable_names: established,
            schema: schemas().all(present),
            valid_types: !any(&|s| !text(&s["type"]).is_empty() && !versions::TYPES.contains(&text(&s["type"]))),
            structural: schemas().all(whole),
            pruned_defaults: !schemas().any(defaults::has_unpruned),
            atomic_sets: !any(&has_non_atomic_set),
            map_keys: !any(&has_invalid_keys),
            valid_ca_bundle: established && conversion::has_valid_ca_bundle(&spec["conversion"]),
            unchanged: unchanged(&new["spec"], spec),
            many_fields: many_fields(&new["spec"], spec),
        }
    }
}

/// `openAPIV3Schema` of a version; null when there is none.
pub(super) fn schema_of(version: &Value) -> &Value {
    &version["schema"]["openAPIV3Schema"]
}

fn is_established(definition: &Value) -> bool {
    items(&definition["status"]["conditions"])
        .iter()
        .any(|c| text(&c["type"]) == "Established" && text(&c["status"]) == "True")
}

fn is_structural(schema: &Value) -> bool {
    if Structural::parse(schema).is_err() {
        return false;
    }
    let mut e = Errors::new();
    structural::check(schema, &Path::new(""), &mut e);
    e.is_empty()
}

fn unchanged(new: &Value, old: &Value) -> HashSet<String> {
    let before = |name: &str| items(&old["versions"]).iter().find(|v| text(&v["name"]) == name);
    items(&new["versions"])
        .iter()
        .filter(|v| before(text(&v["name"])).is_some_and(|old| same(&v["schema"], &old["schema"])))
        .map(|v| text(&v["name"]).to_owned())
        .collect()
}

fn many_fields(new: &Value, old: &Value) -> HashSet<String> {
    let many = |fields: &Value| len(fields) > versions::SELECTABLE_FIELDS_MAX;
    let (new, old) = (Spec::of(new), Spec::of(old));
    let mut kept = HashSet::new();
    if many(old.fields) && same(new.fields, old.fields) {
        kept.insert(String::new());
    }
    for version in new.versions {
        let before = old.versions.iter().find(|v| v["name"] == version["name"]);
        let Some(before) = before.map(|v| old.fields_of(v)).filter(|fields| many(fields)) else { continue };
        if same(new.fields_of(version), before) {
            kept.insert(text(&version["name"]).to_owned());
        }
    }
    kept
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
