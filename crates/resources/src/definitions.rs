//! CustomResourceDefinitions: defaults, updates, and validation. The API server serves the kinds they define. Upstream:
//! `apiextensions-apiserver/pkg/registry/customresourcedefinition`.
use kelson_meta::FieldErrors;
use kelson_structural::definition;
use serde_json::{Value, json};

use crate::metadata;
use crate::options::{Deletion, Observer, Options, texts};
use crate::path::Errors;
use crate::strategy::{Context, Strategy, base_status_update};
use crate::text::Texts;
use crate::tree::{ensure, same, set};

pub struct CustomResourceDefinitions;

static OPTIONS: std::sync::LazyLock<Options> = std::sync::LazyLock::new(|| Options {
    generation: true,
    allow_unconditional_update: false,
    deletion: Deletion::CustomResources,
    observer: Observer::CustomResources,
    ..Options::of("apiextensions.k8s.io", "customresourcedefinitions")
});

/// Does nothing to metadata that is not an object: validation reports it.
fn set_generation(obj: &mut Value, generation: i64) {
    if let Some(meta) = obj.get_mut("metadata").filter(|m| m.is_object()) {
        set(meta, "generation", Value::from(generation));
    }
}

impl Strategy for CustomResourceDefinitions {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        ensure(obj, "status");
        definition::default(obj);
    }
    fn prepare_create(&self, _cx: &Context<'_>, obj: &mut Value) {
        set(obj, "status", json!({"conditions": null, "acceptedNames": {"kind": "", "plural": ""}}));
        definition::store_version(obj);
        set_generation(obj, 1);
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        set(new, "status", old["status"].clone());
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(1);
        let changed = !same(&new["spec"], &old["spec"]);
        set_generation(new, generation.saturating_add(i64::from(changed)));
        definition::store_version(new);
    }
    fn prepare_subresource_update(&self, _cx: &Context<'_>, _subresource: &str, new: &mut Value, old: &Value) {
        base_status_update(new, old);
    }
    fn validate_create(&self, obj: &Value) -> FieldErrors {
        let mut e = Errors::new();
        metadata::check(&OPTIONS, &obj["metadata"], &mut e);
        with(e, definition::validate_create(obj))
    }
    fn validate_update(&self, new: &Value, old: &Value) -> FieldErrors {
        let mut e = Errors::new();
        metadata::check_update(&OPTIONS, "", new, old, &mut e);
        with(e, definition::validate_update(new, old))
    }
    fn validate_subresource_update(&self, subresource: &str, new: &Value, old: &Value) -> FieldErrors {
        let mut e = Errors::new();
        metadata::check_update(&OPTIONS, subresource, new, old, &mut e);
        with(e, definition::validate_status_update(new))
    }
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        definition::warnings(new, old)
    }
    fn reset_fields(&self, subresource: &str) -> Vec<Texts> {
        match subresource {
            "" => vec![texts!["status"]],
            _ => vec![texts!["spec"]],
        }
    }
}

fn with(metadata: Errors, others: FieldErrors) -> FieldErrors {
    let mut all = metadata.finish();
    all.extend(others);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_stored_versions() {
        let mut obj = json!({"metadata": {"name": "as.example.com"}, "spec": {"group": "example.com",
            "names": {"plural": "as", "kind": "Abc"}, "versions": [{"name": "v1", "storage": true, "served": true}]}});
        let kind = CustomResourceDefinitions;
        kind.set_defaults("v1", &mut obj);
        assert_eq!(
            obj["spec"]["names"],
            json!({"plural": "as", "kind": "Abc", "singular": "abc", "listKind": "AbcList"})
        );
        assert_eq!(obj["spec"]["conversion"], json!({"strategy": "None"}));
        obj["status"] = json!({"conditions": [{"type": "Established", "status": "True"}]});
        kind.prepare_create(&Context::at(jiff::Timestamp::UNIX_EPOCH), &mut obj);
        assert_eq!(
            obj["status"],
            json!({"conditions": null, "acceptedNames": {"kind": "", "plural": ""}, "storedVersions": ["v1"]})
        );
        let mut new = obj.clone();
        new["spec"]["versions"] = json!([{"name": "v1"}, {"name": "v2", "storage": true}]);
        kind.prepare_update(&Context::at(jiff::Timestamp::UNIX_EPOCH), &mut new, &obj);
        assert_eq!(new["status"]["storedVersions"], json!(["v1", "v2"]));
        assert_eq!(new["metadata"]["generation"], 2);
    }
}
