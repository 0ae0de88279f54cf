//! Validation of access reviews (upstream `pkg/apis/authorization/validation`).
use kelson_meta::{FieldErrors, FieldPath, is_label_value, is_qualified_name};
use kelson_schema::Schema;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The user of an access review.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ReviewSubject {
    /// The client that sends it.
    Requester,
    /// The user in its spec.
    Named,
    /// The user in its spec, within the namespace in the path.
    NamedHere,
}

/// Returns the validation errors of a review.
pub fn access(review: &Value, subject: ReviewSubject, namespace: &str) -> FieldErrors {
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
    if subject != ReviewSubject::Requester && is_empty("user") && spec["groups"].as_array().is_none_or(Vec::is_empty) {
        e.invalid(&path("user"), "", "at least one of user or group must be specified");
    }
    for (key, of_labels) in [("fieldSelector", false), ("labelSelector", true)] {
        if resource[key].is_object() {
            selector(&resource[key], &path("resourceAttributes").child(key), of_labels, &mut e);
        }
    }
    metadata(&review["metadata"], subject, &mut e);
    if subject == ReviewSubject::NamedHere {
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

fn metadata(metadata: &Value, subject: ReviewSubject, e: &mut FieldErrors) {
    let here = subject == ReviewSubject::NamedHere;
    let is_nothing = |value: &Value| value.is_null() || *value == "" || *value == json!({}) || *value == json!([]);
    let may_be = |key: &str| key == "managedFields" || (here && key == "namespace");
    let odd = metadata.as_object().is_some_and(|all| all.iter().any(|(k, v)| !may_be(k) && !is_nothing(v)));
    if odd {
        let why = if here { "must be empty except for namespace" } else { "must be empty" };
        e.invalid(&FieldPath::new("metadata"), declared(metadata), why);
    }
}

/// Metadata for an error message, with fields in declared order.
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

/// Validates one requirement. Unknown operators are accepted, because newer clients may send them.
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
    fn errors_are_upstreams() {
        let valid = json!({"user": "u", "resourceAttributes": {"namespace": "n"}});
        let with = |key: &str, value: Value| {
            let mut spec = valid.clone();
            spec["resourceAttributes"][key] = value;
            spec
        };
        let rows = [
            (valid.clone(), json!({}), ReviewSubject::NamedHere, "<none>"),
            (
                valid.clone(),
                json!({"name": "x"}),
                ReviewSubject::Named,
                "metadata: Invalid value: {\"name\":\"x\"}: must be empty",
            ),
            (valid.clone(), json!({"namespace": "n", "managedFields": [{}]}), ReviewSubject::NamedHere, "<none>"),
            (
                with("namespace", json!("x")),
                json!({}),
                ReviewSubject::NamedHere,
                "spec.resourceAttributes.namespace: Invalid value: \"x\": must match metadata.namespace",
            ),
            (
                json!({"resourceAttributes": {}, "nonResourceAttributes": {"verb": "get"}}),
                json!({}),
                ReviewSubject::Requester,
                "spec.nonResourceAttributes: Invalid value: {\"Path\":\"\",\"Verb\":\"get\"}: cannot be specified in combination with resourceAttributes",
            ),
            (
                with("fieldSelector", json!({})),
                json!({}),
                ReviewSubject::Named,
                "spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is specified, requirements or rawSelector is required",
            ),
            (
                with("fieldSelector", json!({"requirements": [{"key": "a", "operator": "In"}]})),
                json!({}),
                ReviewSubject::Named,
                "spec.resourceAttributes.fieldSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            ),
            (
                with("labelSelector", json!({"requirements": [{"key": "a", "operator": "Newer"}]})),
                json!({}),
                ReviewSubject::Named,
                "<none>",
            ),
            (
                with(
                    "labelSelector",
                    json!({"rawSelector": "a", "requirements": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
                ),
                json!({}),
                ReviewSubject::Named,
                "[spec.resourceAttributes.labelSelector.rawSelector: Invalid value: \"a\": may not specified at the same time as requirements, spec.resourceAttributes.labelSelector.requirements[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist']",
            ),
        ];
        for (spec, metadata, subject, want) in rows {
            let found = access(&json!({"metadata": metadata, "spec": spec}), subject, "n");
            let found = if found.is_empty() { "<none>".to_owned() } else { found.to_string() };
            assert_eq!(found, want, "{spec}");
        }
    }
}
