//! What is wrong with a review of access (upstream `pkg/apis/authorization/validation`).
use kelson_meta::{FieldErrors, FieldPath, is_label_value, is_qualified_name};
use kelson_schema::Schema;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// Of whom a review asks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Of who sends it.
    Requester,
    /// Of whom it names.
    Named,
    /// Of whom it names, in the namespace of its path.
    NamedHere,
}

/// Finds the faults of a review.
pub fn access(review: &Value, whose: Whose, namespace: &str) -> FieldErrors {
    let mut e = FieldErrors::new();
    let spec = &review["spec"];
    let path = |name: &str| FieldPath::new("spec").child(name);
    let (resource, other) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let text = |key: &str| other[key].as_str().unwrap_or("").to_owned();
    let shown = json!({"Path": text("path"), "Verb": text("verb")});
    match (resource.is_object(), other.is_object()) {
        (true, true) => {
            e.invalid(
                &path("nonResourceAttributes"),
                &shown,
                "cannot be specified in combination with resourceAttributes",
            );
        }
        (false, false) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            e.invalid(&path("resourceAttributes"), Value::Null, why);
        }
        _ => {}
    }
    let is_empty = |key: &str| spec[key].as_str().unwrap_or("").is_empty();
    if whose != Whose::Requester && is_empty("user") && spec["groups"].as_array().is_none_or(Vec::is_empty) {
        e.invalid(&path("user"), "", "at least one of user or group must be specified");
    }
    for (key, of_labels) in [("fieldSelector", false), ("labelSelector", true)] {
        if resource[key].is_object() {
            selector(&resource[key], &path("resourceAttributes").child(key), of_labels, &mut e);
        }
    }
    metadata(&review["metadata"], whose, &mut e);
    if whose == Whose::NamedHere {
        let named = resource["namespace"].as_str().unwrap_or("");
        if resource.is_object() && named != namespace {
            e.invalid(&path("resourceAttributes").child("namespace"), named, "must match metadata.namespace");
        }
        if other.is_object() {
            e.invalid(&path("nonResourceAttributes"), &shown, "disallowed on this kind of request");
        }
    }
    e
}

fn metadata(metadata: &Value, whose: Whose, e: &mut FieldErrors) {
    let here = whose == Whose::NamedHere;
    let is_nothing = |value: &Value| value.is_null() || *value == "" || *value == json!({}) || *value == json!([]);
    let may_be = |key: &str| key == "managedFields" || (here && key == "namespace");
    let odd = metadata.as_object().is_some_and(|all| all.iter().any(|(k, v)| !may_be(k) && !is_nothing(v)));
    if odd {
        let why = if here { "must be empty except for namespace" } else { "must be empty" };
        e.invalid(&FieldPath::new("metadata"), declared(metadata), why);
    }
}

/// Metadata as they are shown, fields in the order of their declaration.
fn declared(metadata: &Value) -> Box<RawValue> {
    let mut text = Vec::new();
    match Schema::builtin().by_name("k8s.io/apimachinery/pkg/apis/meta/v1", "ObjectMeta") {
        Some(ty) => kelson_codec::json::write_declared(ty, metadata, &mut text),
        None => text = kelson_codec::canonical_json(metadata),
    }
    String::from_utf8(text)
        .ok()
        .and_then(|text| RawValue::from_string(text).ok())
        .unwrap_or_else(|| RawValue::NULL.to_owned())
}

fn selector(selector: &Value, p: &FieldPath, of_labels: bool, e: &mut FieldErrors) {
    let raw = selector["rawSelector"].as_str().unwrap_or("");
    let requirements = selector["requirements"].as_array().map_or(&[][..], Vec::as_slice);
    if !raw.is_empty() && !requirements.is_empty() {
        e.invalid(&p.child("rawSelector"), raw, "may not specified at the same time as requirements");
    }
    if raw.is_empty() && requirements.is_empty() {
        let why = format!("when {p} is specified, requirements or rawSelector is required");
        e.required(&p.child("requirements"), &why);
    }
    for (i, one) in requirements.iter().enumerate() {
        requirement(one, &p.child("requirements").index(i), of_labels, e);
    }
}

/// Operators that are not known are those of newer clients.
fn requirement(one: &Value, p: &FieldPath, of_labels: bool, e: &mut FieldErrors) {
    let key = one["key"].as_str().unwrap_or("");
    let values: Vec<&str> = one["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !of_labels && key.is_empty() {
        e.required(&p.child("key"), "must be specified");
    }
    match one["operator"].as_str().unwrap_or("") {
        "In" | "NotIn" if values.is_empty() => {
            e.required(&p.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            e.forbidden(&p.child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        _ => {}
    }
    if of_labels {
        let each = |rule: Result<(), Vec<String>>| rule.err().unwrap_or_default();
        each(is_qualified_name(key)).into_iter().for_each(|why| e.invalid(&p.child("key"), key, why));
        for (i, value) in values.iter().enumerate() {
            each(is_label_value(value)).into_iter().for_each(|why| e.invalid(&p.child("values").index(i), value, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_upstreams() {
        let sound = json!({"user": "u", "resourceAttributes": {"namespace": "n"}});
        let with = |key: &str, value: Value| {
            let mut spec = sound.clone();
            spec["resourceAttributes"][key] = value;
            spec
        };
        let rows = [
            (sound.clone(), json!({}), Whose::NamedHere, "<none>"),
            (
                sound.clone(),
                json!({"name": "x"}),
                Whose::Named,
                "metadata: Invalid value: {\"name\":\"x\"}: must be empty",
            ),
            (sound.clone(), json!({"namespace": "n", "managedFields": [{}]}), Whose::NamedHere, "<none>"),
            (
                with("namespace", json!("x")),
                json!({}),
                Whose::NamedHere,
                "spec.resourceAttributes.namespace: Invalid value: \"x\": must match metadata.namespace",
            ),
            (
                json!({"resourceAttributes": {}, "nonResourceAttributes": {"verb": "get"}}),
                json!({}),
                Whose::Requester,
                "spec.nonResourceAttributes: Invalid value: {\"Path\":\"\",\"Verb\":\"get\"}: cannot be specified in combination with resourceAttributes",
            ),
            (
                with("fieldSelector", json!({})),
                json!({}),
                Whose::Named,
                "spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is specified, requirements or rawSelector is required",
            ),
            (
                with("fieldSelector", json!({"requirements": [{"key": "a", "operator": "In"}]})),
                json!({}),
                Whose::Named,
                "spec.resourceAttributes.fieldSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            ),
            (
                with("labelSelector", json!({"requirements": [{"key": "a", "operator": "Newer"}]})),
                json!({}),
                Whose::Named,
                "<none>",
            ),
            (
                with(
                    "labelSelector",
                    json!({"rawSelector": "a", "requirements": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
                ),
                json!({}),
                Whose::Named,
                "[spec.resourceAttributes.labelSelector.rawSelector: Invalid value: \"a\": may not specified at the same time as requirements, spec.resourceAttributes.labelSelector.requirements[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist']",
            ),
        ];
        for (spec, metadata, whose, want) in rows {
            let found = access(&json!({"metadata": metadata, "spec": spec}), whose, "n");
            let found = if found.is_empty() { "<none>".to_owned() } else { found.to_string() };
            assert_eq!(found, want, "{spec}");
        }
    }
}
