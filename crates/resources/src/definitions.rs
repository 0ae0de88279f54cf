//! CustomResourceDefinitions: kinds that users define. What makes them work is the API server's; here are their defaults,
//! what an update keeps, and their validation. Upstream: `apiextensions-apiserver/pkg/registry/customresourcedefinition`.
use serde_json::{Value, json};

use crate::options::{Deletion, Observer, Options, texts};
use crate::strategy::{Context, Strategy, base_status_update};
use crate::text::Texts;
use crate::tree::{at_mut, default_to, ensure, flag, items, present, same, set, text};

/// CustomResourceDefinitions.
pub struct CustomResourceDefinitions;

static OPTIONS: std::sync::LazyLock<Options> = std::sync::LazyLock::new(|| Options {
    generation: true,
    allow_unconditional_update: false,
    deletion: Deletion::CustomResources,
    observer: Observer::CustomResources,
    ..Options::of("apiextensions.k8s.io", "customresourcedefinitions")
});

/// The version that is stored has stored objects, from now on and until an administrator says otherwise.
fn note_stored_version(definition: &mut Value) {
    let storage = items(&definition["spec"]["versions"]).iter().find(|v| flag(&v["storage"]));
    let Some(name) = storage.map(|v| v["name"].clone()).filter(Value::is_string) else { return };
    let Some(status) = ensure(definition, "status") else { return };
    let stored = &mut status["storedVersions"];
    match stored.as_array_mut() {
        Some(list) if list.contains(&name) => {}
        Some(list) => list.push(name),
        None => *stored = json!([name]),
    }
}

impl Strategy for CustomResourceDefinitions {
    fn options(&self) -> &Options {
        &OPTIONS
    }
    fn set_defaults(&self, _version: &str, obj: &mut Value) {
        if let Some(names) = at_mut(obj, &["spec", "names"]) {
            let kind = text(&names["kind"]).to_owned();
            if text(&names["singular"]).is_empty() {
                set(names, "singular", kind.to_lowercase());
            }
            if text(&names["listKind"]).is_empty() && !kind.is_empty() {
                set(names, "listKind", format!("{kind}List"));
            }
        }
        if let Some(spec) = at_mut(obj, &["spec"])
            && !present(&spec["conversion"])
        {
            set(spec, "conversion", json!({"strategy": "None"}));
        }
        if let Some(service) = at_mut(obj, &["spec", "conversion", "webhook", "clientConfig", "service"]) {
            default_to(service, "port", 443);
        }
        ensure(obj, "status");
        if items(&obj["status"]["storedVersions"]).is_empty() {
            note_stored_version(obj);
        }
    }
    fn prepare_create(&self, _cx: &Context<'_>, obj: &mut Value) {
        set(obj, "status", json!({"acceptedNames": {"kind": "", "plural": ""}}));
        note_stored_version(obj);
        obj["metadata"]["generation"] = 1.into();
    }
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        set(new, "status", old["status"].clone());
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(1);
        let changed = !same(&new["spec"], &old["spec"]);
        new["metadata"]["generation"] = (generation + i64::from(changed)).into();
        note_stored_version(new);
    }
    fn prepare_subresource_update(&self, _cx: &Context<'_>, _subresource: &str, new: &mut Value, old: &Value) {
        base_status_update(new, old);
    }
    fn reset_fields(&self, subresource: &str) -> Vec<Texts> {
        match subresource {
            "" => vec![texts!["status"]],
            _ => vec![texts!["spec"]],
        }
    }
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
        assert_eq!(obj["status"], json!({"acceptedNames": {"kind": "", "plural": ""}, "storedVersions": ["v1"]}));
        let mut new = obj.clone();
        new["spec"]["versions"] = json!([{"name": "v1"}, {"name": "v2", "storage": true}]);
        kind.prepare_update(&Context::at(jiff::Timestamp::UNIX_EPOCH), &mut new, &obj);
        assert_eq!(new["status"]["storedVersions"], json!(["v1", "v2"]));
        assert_eq!(new["metadata"]["generation"], 2);
    }
}
