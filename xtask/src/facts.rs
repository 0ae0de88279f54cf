//! The facts about Kubernetes' published definitions that tests need: names, types, numbers, verbs. No sentence is
//! taken from them.
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

/// The content of `facts/discovery.jsonl`.
pub struct Discovery {
    /// The groups, in their order.
    pub groups: Vec<Value>,
    /// The resources of each `GROUP/VERSION`, in their order.
    resources: BTreeMap<String, Vec<Value>>,
}

impl Discovery {
    /// Reads the lines that [`discovery`] writes.
    pub fn parse(text: &str) -> Result<Self> {
        let (mut groups, mut resources) = (Vec::new(), BTreeMap::<String, Vec<Value>>::new());
        for line in text.lines() {
            let mut line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            match line["list"].as_str().map(str::to_owned) {
                Some(list) => resources.entry(list).or_default().push(line["resource"].take()),
                None => groups.push(line["group"].take()),
            }
        }
        Ok(Self { groups, resources })
    }

    /// Returns the resources of a group version.
    pub fn resources(&self, group: &str, version: &str) -> &[Value] {
        let name = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        self.resources.get(&name).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Returns the definitions of `facts/openapi.jsonl`, in the form of a document of version 2.
pub fn definitions(text: &str) -> Result<Value> {
    let mut all = Map::new();
    for line in text.lines() {
        let mut line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        if let Some(name) = line["definition"].as_str().map(str::to_owned) {
            all.insert(name, line["schema"].take());
        }
    }
    Ok(json!({"definitions": all}))
}

fn read(path: &Path) -> Result<Value> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&bytes).with_context(|| path.display().to_string())
}

/// Returns one line `{"group": …}` for each API group, and one `{"list": GROUP_VERSION, "resource": …}` for each
/// resource.
pub fn discovery(dir: &Path) -> Result<String> {
    let mut text = String::new();
    let list = |group_version: &str, file: &str| -> Result<String> {
        let mut lines = String::new();
        for resource in read(&dir.join(file))?["resources"].as_array().context("resources")? {
            writeln!(lines, "{}", json!({"list": group_version, "resource": resource}))?;
        }
        Ok(lines)
    };
    let mut lists = list("v1", "api__v1.json")?;
    for group in read(&dir.join("apis.json"))?["groups"].as_array().context("groups")? {
        writeln!(text, "{}", json!({"group": group}))?;
        for version in group["versions"].as_array().context("versions")? {
            let group_version = version["groupVersion"].as_str().context("groupVersion")?;
            lists += &list(group_version, &format!("apis__{}.json", group_version.replace('/', "__")))?;
        }
    }
    Ok(text + &lists)
}

/// Returns one line `{"definition": NAME, "schema": …}` for each definition, and one `{"v3": NAME, "field": …,
/// "schema": …}` for each field that version 3 of the format defines differently.
pub fn openapi(dir: &Path) -> Result<String> {
    let mut text = String::new();
    let v2 = bare(&read(&dir.join("swagger.json"))?["definitions"]);
    let v2 = v2.as_object().context("definitions")?;
    for (name, schema) in v2 {
        writeln!(text, "{}", json!({"definition": name, "schema": schema}))?;
    }
    let mut v3 = Map::new();
    let mut files: Vec<PathBuf> =
        fs::read_dir(dir.join("v3"))?.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_file()).collect();
    files.sort();
    for file in files {
        let document = as_served(&bare(&read(&file)?), false);
        for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
            for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
                let same = v2.get(name).map(|d| in_v3(&d["properties"][field]));
                let key = format!("{name} {field}");
                match v3.get(&key) {
                    Some(known) if known != schema => bail!("{}: {key} differs between documents", file.display()),
                    None if same.as_ref() != Some(schema) => drop(v3.insert(key, schema.clone())),
                    _ => {}
                }
            }
        }
    }
    for (key, schema) in &v3 {
        let (name, field) = key.split_once(' ').context("key")?;
        writeln!(text, "{}", json!({"v3": name, "field": field, "schema": schema}))?;
    }
    Ok(text)
}

/// Converts a published document of version 3 to the form that a server answers: without the defaults of lists' and
/// maps' elements, whose references are kept.
fn as_served(value: &Value, element: bool) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(k, _)| !(element && *k == "default"));
            let inner = |k: &str| matches!(k, "items" | "additionalProperties");
            let served: Map<_, _> = kept.map(|(k, v)| (k.clone(), as_served(v, inner(k)))).collect();
            match served.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
                Some([only]) if element && served.len() == 1 && map.len() == 2 => only.clone(),
                _ => Value::Object(served),
            }
        }
        Value::Array(list) => list.iter().map(|v| as_served(v, false)).collect(),
        other => other.clone(),
    }
}

/// Returns a schema with references in the form of version 3.
fn in_v3(schema: &Value) -> Value {
    match schema {
        Value::String(s) => s.replace("#/definitions/", "#/components/schemas/").into(),
        Value::Array(list) => list.iter().map(in_v3).collect(),
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), in_v3(v))).collect::<Map<_, _>>().into(),
        other => other.clone(),
    }
}

/// Removes texts, and enumerations, which are disabled in published documents.
fn bare(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = |k: &str, v: &Value| !(k == "description" && v.is_string() || k == "enum" && v.is_array());
            map.iter().filter(|(k, v)| kept(k, v)).map(|(k, v)| (k.clone(), bare(v))).collect::<Map<_, _>>().into()
        }
        Value::Array(list) => list.iter().map(bare).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        let text = "{\"group\":{\"name\":\"b.io\"}}\n{\"group\":{\"name\":\"a.io\"}}\n{\"list\":\"v1\",\"resource\":{\"name\":\"pods\"}}\n\
                    {\"list\":\"a.io/v2\",\"resource\":{\"name\":\"x\"}}\n";
        let discovery = Discovery::parse(text).expect("lines");
        assert_eq!(discovery.groups, [json!({"name": "b.io"}), json!({"name": "a.io"})]);
        assert_eq!(discovery.resources("", "v1"), [json!({"name": "pods"})]);
        assert_eq!(discovery.resources("a.io", "v2"), [json!({"name": "x"})]);
        assert!(discovery.resources("a.io", "v1").is_empty());
        let text =
            "{\"definition\":\"A\",\"schema\":{\"type\":\"object\"}}\n{\"v3\":\"A\",\"field\":\"b\",\"schema\":{}}\n";
        assert_eq!(definitions(text).expect("lines"), json!({"definitions": {"A": {"type": "object"}}}));
    }
}
