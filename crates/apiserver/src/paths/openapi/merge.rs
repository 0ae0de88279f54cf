//! Merges OpenAPI v2 documents of aggregated API servers: of each, the paths of its group version and what they refer to (upstream's
//! `kube-aggregator/pkg/controllers/openapi/aggregator`).
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// The parts of a document that are referred to, and the prefixes of references.
const SHARED: [(&str, &str); 2] = [("definitions", "#/definitions/"), ("parameters", "#/parameters/")];
/// Names that are tried for a definition whose name is taken.
const NAMES_MAX: usize = 16;

/// Adds the paths of `theirs` below `root` (`/apis/GROUP/VERSION/`). Existing paths are kept.
pub fn add_paths(ours: &mut Value, mut theirs: Value, root: &str) {
    let paths = theirs["paths"].take();
    let Value::Object(paths) = paths else { return };
    let known = |path: &str| ours["paths"].get(path).is_some();
    let mut paths: Map<String, Value> =
        paths.into_iter().filter(|(path, _)| path.starts_with(root) && !known(path)).collect();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let wanted = referred(&paths, &theirs);
    for (part, prefix) in SHARED {
        for name in wanted.iter().filter_map(|reference| reference.strip_prefix(prefix)) {
            if let Some(given) = place(&ours[part], name, &theirs[part][name]) {
                names.insert(format!("{prefix}{name}"), format!("{prefix}{given}"));
            }
        }
    }
    for (part, prefix) in SHARED {
        for (from, to) in names.iter().filter(|(from, _)| from.starts_with(prefix)) {
            let mut schema = theirs[part][&from[prefix.len()..]].take();
            rename(&mut schema, &names);
            ours[part][&to[prefix.len()..]] = schema;
        }
    }
    for item in paths.values_mut() {
        rename(item, &names);
    }
    if let Some(all) = ours["paths"].as_object_mut() {
        all.extend(paths);
    }
}

/// All references in the paths, direct and indirect.
fn referred(paths: &Map<String, Value>, document: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut pending: Vec<&Value> = paths.values().collect();
    while let Some(value) = pending.pop() {
        match value {
            Value::Object(map) => {
                if let Some(reference) = map.get("$ref").and_then(Value::as_str)
                    && found.insert(reference.to_owned())
                    && let Some((part, prefix)) = SHARED.iter().find(|(_, prefix)| reference.starts_with(prefix))
                {
                    pending.extend(document[*part].get(&reference[prefix.len()..]));
                }
                pending.extend(map.values());
            }
            Value::Array(list) => pending.extend(list),
            _ => {}
        }
    }
    found
}

/// The name for a definition: its own, or one with a number if that is taken by a different definition. `None` for a missing
/// definition, or if no name is free.
fn place(there: &Value, name: &str, schema: &Value) -> Option<String> {
    if schema.is_null() {
        return None;
    }
    let free = |name: &str| there.get(name).is_none_or(|known| known == schema);
    if free(name) {
        return Some(name.to_owned());
    }
    (2..NAMES_MAX).map(|n| format!("{name}_v{n}")).find(|name| free(name))
}

fn rename(value: &mut Value, names: &BTreeMap<String, String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match value {
                    Value::String(reference) if key == "$ref" => {
                        if let Some(given) = names.get(reference.as_str()) {
                            reference.clone_from(given);
                        }
                    }
                    other => rename(other, names),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| rename(value, names)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_belongs_to_the_group_version_is_added() {
        let mut ours = json!({"paths": {"/api/v1/pods": {}}, "parameters": {},
            "definitions": {"Meta": {"type": "object"}, "Same": {"type": "string"}}});
        let get = json!({"responses": {"200": {"schema": {"$ref": "#/definitions/Thing"}}},
            "parameters": [{"$ref": "#/parameters/pretty-1"}]});
        let theirs = json!({
            "paths": {"/apis/far.example.com/v1/things": {"get": get}, "/api/v1/pods": {"evil": {}}, "/apis/other/v1/x": {}},
            "parameters": {"pretty-1": {"name": "pretty"}, "unused": {}},
            "definitions": {
                "Thing": {"properties": {"metadata": {"$ref": "#/definitions/Meta"}, "s": {"$ref": "#/definitions/Same"},
                    "self": {"$ref": "#/definitions/Thing"}}},
                "Meta": {"type": "object", "description": "another one"},
                "Same": {"type": "string"},
                "Unused": {},
            },
        });
        add_paths(&mut ours, theirs, "/apis/far.example.com/v1/");
        let names = |part: &str| ours[part].as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(names("paths"), "/api/v1/pods /apis/far.example.com/v1/things");
        assert_eq!(names("definitions"), "Meta Meta_v2 Same Thing");
        assert_eq!(names("parameters"), "pretty-1");
        assert_eq!(ours["paths"]["/api/v1/pods"], json!({}));
        let thing = &ours["definitions"]["Thing"]["properties"];
        assert_eq!(thing["metadata"]["$ref"], "#/definitions/Meta_v2");
        assert_eq!(
            (&thing["s"]["$ref"], &thing["self"]["$ref"]),
            (&json!("#/definitions/Same"), &json!("#/definitions/Thing"))
        );
    }
}
