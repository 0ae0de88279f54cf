//! Definitions in version v1beta1, in which the reference still stores all of them. In this version, fields that are
//! equal in all versions of a definition may be in the spec. Pure.

use kelson_codec::TypeMeta;
use serde_json::{Map, Value, json};

/// Whether a document is a definition of the old version.
pub(super) fn is_old(says: &TypeMeta) -> bool {
    says.kind == "CustomResourceDefinition" && says.api_version == "apiextensions.k8s.io/v1beta1"
}

/// The fields of a version that may be in the spec for all versions, under their names in the spec.
const SHARED: [(&str, &str); 4] = [
    ("validation", "schema"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];

/// The same definition in version v1.
pub(super) fn renewed(mut definition: Value) -> Value {
    definition["apiVersion"] = "apiextensions.k8s.io/v1".into();
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else { return definition };
    let shared: Vec<(&str, Value)> = SHARED.iter().filter_map(|(from, to)| Some((*to, spec.remove(*from)?))).collect();
    let single = spec.remove("version");
    let mut versions = match spec.remove("versions") {
        Some(Value::Array(versions)) => versions,
        _ => Vec::new(),
    };
    if let (true, Some(name)) = (versions.is_empty(), single) {
        versions.push(json!({"name": name, "served": true, "storage": true}));
    }
    for version in versions.iter_mut().filter_map(Value::as_object_mut) {
        for (field, value) in &shared {
            version.entry(*field).or_insert_with(|| value.clone());
        }
        columns(version);
    }
    spec.insert("versions".into(), versions.into());
    if spec.get("preserveUnknownFields") == Some(&Value::Bool(false)) {
        spec.remove("preserveUnknownFields");
    }
    if let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut) {
        webhook(conversion);
    }
    definition
}

/// The path of a column is spelled in small letters now.
fn columns(version: &mut Map<String, Value>) {
    let columns = version.get_mut("additionalPrinterColumns").and_then(Value::as_array_mut);
    for column in columns.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(path) = column.remove("JSONPath") {
            column.insert("jsonPath".into(), path);
        }
    }
}

/// Moves `webhookClientConfig` and `conversionReviewVersions` of `v1beta1` into the object `webhook` of `v1`.
fn webhook(conversion: &mut Map<String, Value>) {
    let config = conversion.remove("webhookClientConfig").filter(|config| !config.is_null());
    let versions = conversion.remove("conversionReviewVersions").filter(|versions| !versions.is_null());
    if config.is_none() && versions.is_none() {
        return;
    }
    let mut webhook = Map::new();
    webhook.extend(config.map(|config| ("clientConfig".to_owned(), config)));
    webhook.insert("conversionReviewVersions".into(), versions.unwrap_or_else(|| json!([])));
    conversion.insert("webhook".into(), webhook.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_field_is_in_every_version() {
        let old = json!({
            "apiVersion": "apiextensions.k8s.io/v1beta1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "version": "v1", "scope": "Namespaced", "names": {"plural": "widgets"},
                "validation": {"openAPIV3Schema": {"type": "object"}},
                "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "A", "type": "string", "JSONPath": ".spec.a"}],
                "versions": [{"name": "v1", "served": true, "storage": true}, {"name": "v2", "served": true, "storage": false}],
                "conversion": {"strategy": "Webhook", "webhookClientConfig": {"url": "https://a"}, "conversionReviewVersions": ["v1"]},
                "preserveUnknownFields": false,
            },
            "status": {"storedVersions": ["v1"]},
        });
        let new = renewed(old);
        let own = |name: &str, storage: bool| {
            json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}},
                "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": ".spec.a"}]})
        };
        assert_eq!(
            new["spec"],
            json!({"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets"},
                "versions": [own("v1", true), own("v2", false)],
                "conversion": {"strategy": "Webhook",
                    "webhook": {"clientConfig": {"url": "https://a"}, "conversionReviewVersions": ["v1"]}}})
        );
        assert_eq!(
            (&new["apiVersion"], &new["status"]["storedVersions"]),
            (&json!("apiextensions.k8s.io/v1"), &json!(["v1"]))
        );
    }

    #[test]
    fn versions_keep_what_is_their_own() {
        let own = json!({"openAPIV3Schema": {"type": "object", "x": 1}});
        let versions = json!([{"name": "v1", "schema": own,
            "additionalPrinterColumns": [{"name": "A", "JSONPath": ".a"}]}, {"name": "v2"}]);
        let new = renewed(json!({"spec": {"version": "v1", "versions": versions, "conversion": {"strategy": "None"},
            "preserveUnknownFields": true}}));
        assert_eq!(new["spec"]["versions"][0]["schema"], own);
        assert_eq!(new["spec"]["versions"][0]["additionalPrinterColumns"][0]["jsonPath"], ".a");
        assert_eq!(new["spec"]["versions"][1], json!({"name": "v2"}));
        assert_eq!(new["spec"]["conversion"], json!({"strategy": "None"}));
        assert_eq!(new["spec"]["preserveUnknownFields"], true);
        let single = renewed(json!({"spec": {"version": "v1", "validation": {"openAPIV3Schema": {}}}}));
        let want = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {}}}]);
        assert_eq!(single["spec"]["versions"], want);
        assert_eq!(renewed(json!({"spec": 1}))["spec"], 1);
    }
}
