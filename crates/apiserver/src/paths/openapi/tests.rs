//! Compares definitions with the published ones, without descriptions.
use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// The published facts that `cargo xtask facts` extracted: definitions of version 2, and differences of version 3.
struct Facts {
    definitions: Map<String, Value>,
    v3: BTreeMap<(String, String), Value>,
}

fn facts() -> Facts {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../facts/openapi.jsonl");
    let text = std::fs::read_to_string(path).expect(path);
    let mut facts = Facts { definitions: Map::new(), v3: BTreeMap::new() };
    for line in text.lines() {
        let mut fact: Value = serde_json::from_str(line).expect("a line is JSON");
        let schema = fact["schema"].take();
        match (fact["definition"].as_str(), fact["v3"].as_str(), fact["field"].as_str()) {
            (Some(name), ..) => drop(facts.definitions.insert(name.to_owned(), schema)),
            (_, Some(name), Some(field)) => drop(facts.v3.insert((name.to_owned(), field.to_owned()), schema)),
            _ => panic!("{line}"),
        }
    }
    facts
}

impl Facts {
    /// The schema of a field in version 3.
    fn v3(&self, name: &str, field: &str) -> Option<Value> {
        if let Some(own) = self.v3.get(&(name.to_owned(), field.to_owned())) {
            return Some(own.clone());
        }
        let v2 = &self.definitions.get(name)?["properties"][field];
        let text = v2.to_string().replace("#/definitions/", "#/components/schemas/");
        Some(serde_json::from_str(&text).expect("JSON"))
    }
}

/// Removes descriptions and enumerations, which were switched off for the published documents.
fn bare(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(k, v)| !(*k == "description" && v.is_string() || *k == "enum" && v.is_array()))
            .map(|(k, v)| (k.clone(), bare(v)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(list) => list.iter().map(bare).collect(),
        other => other.clone(),
    }
}

#[test]
fn definitions_equal_the_published_ones() {
    let facts = facts();
    let ours = v2(&Catalog::builtin());
    let (ours, theirs) = (ours["definitions"].as_object().unwrap(), &facts.definitions);
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (name, schema) in ours {
        let Some(their) = theirs.get(name) else { continue };
        compared += 1;
        let (ours, theirs) = (bare(schema), bare(their));
        let none = Map::new();
        let (a, b) =
            (ours["properties"].as_object().unwrap_or(&none), theirs["properties"].as_object().unwrap_or(&none));
        for field in a.keys().chain(b.keys()) {
            if a.get(field) != b.get(field) {
                wrong.push(format!("{name}.{field}: {:?} != {:?}", a.get(field), b.get(field)));
            }
        }
        // A set: the published list is in declared order, ours is sorted.
        let set = |schema: &Value| -> BTreeSet<String> {
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        if set(&ours) != set(&theirs) {
            wrong.push(format!("{name} required"));
        }
        for extension in ["x-kubernetes-unions", "x-kubernetes-group-version-kind"] {
            if ours[extension] != theirs[extension] {
                wrong.push(format!("{name} {extension}: {} != {}", ours[extension], theirs[extension]));
            }
        }
    }
    wrong.dedup();
    assert!(compared > 500, "only {compared} compared");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Unwraps a reference without other members: ours may be wrapped because of a description that the published one lacks.
fn unwrapped(property: &Value) -> &Value {
    match (property.as_object().map(Map::len), property["allOf"].as_array().map(Vec::as_slice)) {
        (Some(1), Some([reference])) => reference,
        _ => property,
    }
}

/// Compares members besides references, and defaults.
#[test]
fn v3_properties_equal_the_published_ones() {
    let facts = facts();
    let catalog = Catalog::builtin();
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for (group, version) in group_versions(&catalog) {
        let name = document_name(&group, &version);
        let ours = bare(&v3(&catalog, &name).expect("a document")["components"]["schemas"]);
        for (schema, our) in ours.as_object().unwrap() {
            for (field, our) in our["properties"].as_object().into_iter().flatten() {
                let Some(their) = &facts.v3(schema, field) else { continue };
                compared += 1;
                if unwrapped(our) != unwrapped(their) {
                    wrong.push(format!("{name}: {schema}.{field}: {our} != {their}"));
                }
            }
        }
    }
    assert!(compared > 3000, "only {compared} compared");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn everything_served_is_described() {
    let document = v2(&Catalog::builtin());
    let mut missing = Vec::new();
    for (name, schema) in document["definitions"].as_object().unwrap() {
        let properties = schema["properties"].as_object().into_iter().flatten();
        for (field, schema) in properties.map(|(f, s)| (f.as_str(), s)).chain([("", schema)]) {
            if !schema["description"].is_string() {
                missing.push(format!("{name}.{field}"));
            }
        }
    }
    assert!(missing.is_empty(), "{} are not described:\n{}", missing.len(), missing.join("\n"));
    let operations = document["paths"].as_object().unwrap().values().flat_map(|p| p.as_object().unwrap().values());
    assert!(operations.filter(|o| o.is_object()).all(|o| o["description"].is_string()));
}

#[test]
fn every_reference_resolves() {
    let catalog = Catalog::builtin();
    for (group, version) in group_versions(&catalog) {
        let name = document_name(&group, &version);
        let document = v3(&catalog, &name).expect("a document");
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let text = document.to_string();
        for reference in text.split("\"#/components/schemas/").skip(1) {
            let target = reference.split('"').next().unwrap();
            assert!(schemas.contains_key(target), "{name}: {target}");
        }
        assert!(schemas.values().all(|s| !s.is_null()), "{name}");
    }
    assert!(v3(&catalog, "apis/nope/v1").is_none());
}
