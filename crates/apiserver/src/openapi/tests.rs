//! The generated documents against the published ones, descriptions apart.
use std::collections::BTreeSet;

use super::*;

fn reference() -> Option<Value> {
    let root = std::env::var("KELSON_SHARED")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").into());
    let text = std::fs::read_to_string(format!("{root}/reference/openapi/swagger.json"));
    match text {
        Ok(text) => Some(serde_json::from_str(&text).expect("published JSON")),
        Err(_) => {
            eprintln!("SKIPPED: no ../shared");
            None
        }
    }
}

/// Without what the table does not hold.
fn bare(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(k, v)| {
                !(*k == "description" && v.is_string())
                    && !matches!(k.as_str(), "default" | "x-kubernetes-unions" | "enum")
            })
            .map(|(k, v)| (k.clone(), bare(v)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(list) => list.iter().map(bare).collect(),
        other => other.clone(),
    }
}

/// Its fields are inlined from a type that has no published definition to tell the generator which are required: the
/// one known difference.
const INLINED: &str = "io.k8s.api.core.v1.EphemeralContainer";

#[test]
fn definitions_equal_the_published_ones() {
    let Some(published) = reference() else { return };
    let ours = v2(&Catalog::builtin());
    let (ours, theirs) = (ours["definitions"].as_object().unwrap(), published["definitions"].as_object().unwrap());
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
        // A set: the published one lists it in the order of declaration, ours in that of names.
        let set = |schema: &Value| -> BTreeSet<String> {
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        if set(&ours) != set(&theirs) && name != INLINED {
            wrong.push(format!("{name} required"));
        }
    }
    wrong.dedup();
    assert!(compared > 500, "only {compared} compared");
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
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
