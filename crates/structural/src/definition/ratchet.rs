//! Violations of an old definition that a changed one may keep.
use std::collections::HashSet;

use kelson_meta::path::{Errors, Path};
use kelson_meta::tree::{items, len, present, same, text};
use serde_json::Value;

use super::options::{Options, any_place, schema_of};
use super::schema_lists::{has_invalid_keys, has_non_atomic_set};
use super::view::Spec;
use super::{conversion, defaults, schema, structural, versions};
use crate::Structural;

/// Returns the requirements for a changed definition.
pub(super) fn of_update(new: &Value, old: &Value) -> Options {
    let spec = &old["spec"];
    let schemas = || items(&spec["versions"]).iter().map(schema_of);
    let any = |test: &dyn Fn(&Value) -> bool| schemas().any(|s| any_place(s, test));
    let reviews = items(&spec["conversion"]["webhook"]["conversionReviewVersions"]);
    let established = is_established(old);
    let whole = |schema: &Value| schema.is_null() || is_structural(schema);
    Options {
        recognized_review_version: reviews.is_empty() || reviews.iter().any(conversion::is_recognized),
        immutable_names: established,
        schema: schemas().all(present),
        valid_types: !any(&|s| !text(&s["type"]).is_empty() && !schema::TYPES.contains(&text(&s["type"]))),
        structural: schemas().all(whole),
        pruned_defaults: !schemas().any(defaults::has_unpruned),
        atomic_sets: !any(&has_non_atomic_set),
        map_keys: !any(&has_invalid_keys),
        valid_ca_bundle: established && conversion::has_valid_ca_bundle(&spec["conversion"]),
        unchanged: unchanged(&new["spec"], spec),
        many_fields: many_fields(&new["spec"], spec),
    }
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
