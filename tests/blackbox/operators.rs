//! Definitions as large as those of popular operators: built from the server's own schema of a pod template, and, if
//! `KELSON_OPERATORS` names a directory, published ones with their sample objects.
//!
//! The directory has one folder for each operator: definitions in `crds`, valid objects in `samples`, invalid objects
//! in `invalid`; each of the last two may be missing. Namespaces that samples use are created.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kelson_blackbox::{Needs::Api, Needs::Operators, Outcome, Raw, Subject, Test, eventually};
use serde_json::{Map, Value, json};

use crate::definitions::established;

pub fn tests() -> Vec<Test> {
    vec![
        Test { name: "operators::a_definition_with_a_pod_template", needs: Api, run: a_definition_with_a_pod_template },
        Test { name: "operators::published_definitions", needs: Operators, run: published_definitions },
    ]
}

/// Returns a structural schema of a published type: references are resolved, and parts that definitions may not have
/// are left out.
fn structural(components: &Value, schema: &Value, depth: usize) -> anyhow::Result<Value> {
    ensure!(depth < 40, "a type that has itself");
    let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
    if let Some(reference) = reference {
        let name = reference.rsplit('/').next().unwrap_or_default();
        let mut made = match name {
            "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => json!({"x-kubernetes-int-or-string": true}),
            "io.k8s.apimachinery.pkg.api.resource.Quantity" => {
                json!({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true})
            }
            _ => structural(components, &components[name], depth + 1)?,
        };
        if let Some(text) = schema["description"].as_str() {
            made["description"] = text.into();
        }
        return Ok(made);
    }
    let mut out = Map::new();
    for key in
        ["type", "format", "description", "required", "enum", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"]
    {
        if let Some(value) = schema.get(key) {
            out.insert(key.to_owned(), value.clone());
        }
    }
    if schema["x-kubernetes-map-type"] == "atomic" {
        out.insert("x-kubernetes-map-type".into(), "atomic".into());
    }
    if let Some(fields) = schema["properties"].as_object() {
        let mut properties = Map::new();
        for (name, field) in fields {
            let mut made = structural(components, field, depth + 1)?;
            if name == "protocol" {
                made["default"] = "TCP".into();
            }
            properties.insert(name.clone(), made);
        }
        out.insert("properties".into(), Value::Object(properties));
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(key) {
            out.insert(key.to_owned(), structural(components, inner, depth + 1)?);
        }
    }
    // Keys of a list must be present: an optional one gets an empty default.
    for key in schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let Some(items) = out.get_mut("items") else { continue };
        let required = items["required"].as_array().is_some_and(|required| required.iter().any(|name| name == key));
        let field = &mut items["properties"][key];
        if !required && field.get("default").is_none() {
            field["default"] = "".into();
        }
    }
    if out.get("type").is_none() {
        out.insert("type".into(), "object".into());
        out.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
    }
    Ok(Value::Object(out))
}

fn a_definition_with_a_pod_template(s: &Subject) -> Outcome {
    let document: Value = serde_json::from_str(&s.kubectl.ok(&["get", "--raw", "/openapi/v3/api/v1"])?)?;
    let components = &document["components"]["schemas"];
    let mut template = structural(components, &json!({"$ref": "#/io.k8s.api.core.v1.PodTemplateSpec"}), 0)?;
    // Only the outermost object's metadata is handled by the server.
    template["properties"]["metadata"] = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let spec = json!({"type": "object", "required": ["template"], "properties": {
        "replicas": {"type": "integer", "minimum": 0}, "template": template.clone(), "canary": template}});
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "fleets.large.example.com"},
        "spec": {"group": "large.example.com", "scope": "Namespaced", "names": {"plural": "fleets", "kind": "Fleet"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let text = definition.to_string();
    ensure!(text.len() > 250_000, "as large as an operator's: {} bytes", text.len());
    let raw = Raw::open(&s.kubectl)?;
    let made = raw.json("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition)?;
    ensure!(made.code == 201, "{}", made.message().chars().take(2000).collect::<String>());
    established(s, "fleets.large.example.com")?;
    let k = s.kubectl.fresh_namespace("large")?;
    let fleet = "apiVersion: large.example.com/v1\nkind: Fleet\nmetadata: {name: f}\nspec:\n  template:\n    spec:\n      \
                 containers:\n      - {name: a, image: i, ports: [{containerPort: 80}], resources: {limits: {cpu: 1}}}\n";
    let apply = |manifest: &str| k.with_input(&["apply", "--server-side", "-f", "-"], manifest.as_bytes());
    eventually("the kind is served", Duration::from_secs(60), || {
        let out = apply(fleet)?;
        ensure!(out.code == 0, "{}", out.stderr);
        Ok(())
    })?;
    let stored = k.json(&["get", "fleet", "f"])?;
    let container = &stored["spec"]["template"]["spec"]["containers"][0];
    ensure!(container["ports"][0]["protocol"] == "TCP", "defaulted deep down: {container}");
    // Lists of the template are merged by their keys, as the schema says.
    let second = fleet.replace("{name: a, image: i,", "{name: b, image: j,");
    let out = k.with_input(&["apply", "--server-side", "--field-manager=other", "-f", "-"], second.as_bytes())?;
    ensure!(out.code == 0, "{}", out.stderr);
    let names = k.ok(&["get", "fleet", "f", "-o", "jsonpath={.spec.template.spec.containers[*].name}"])?;
    ensure!(names == "a b", "{names}");
    let wrong = fleet.replace("containerPort: 80", "containerPort: eighty");
    let out =
        k.with_input(&["create", "--validate=false", "-f", "-"], wrong.replace("name: f", "name: g").as_bytes())?;
    let why = "spec.template.spec.containers[0].ports[0].containerPort: Invalid value: \"string\"";
    ensure!(out.code != 0 && out.stderr.contains(why), "{}", out.stderr);
    let unknown = fleet.replace("image: i,", "imag: i,").replace("name: f", "name: h");
    let out = k.with_input(&["create", "-f", "-"], unknown.as_bytes())?;
    ensure!(
        out.code != 0 && out.stderr.contains("unknown field \"spec.template.spec.containers[0].imag\""),
        "{}",
        out.stderr
    );
    let out = k.ok(&["explain", "fleet.spec.canary.spec.containers.livenessProbe.httpGet"])?;
    ensure!(out.contains("scheme") && out.contains("<string>"), "{out}");
    s.kubectl.ok(&["delete", "crd", "fleets.large.example.com"])?;
    s.kubectl.ok(&["delete", "namespace", "large", "--wait=false"])?;
    Ok(())
}

fn yaml_files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(Vec::new()) };
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|e| e == "yaml" || e == "yml"));
    files.sort();
    Ok(files)
}

fn published_definitions(s: &Subject) -> Outcome {
    let dir = PathBuf::from(std::env::var_os("KELSON_OPERATORS").context("KELSON_OPERATORS")?);
    let mut operators = std::fs::read_dir(&dir)?.map(|e| Ok(e?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    operators.sort();
    for operator in operators.iter().filter(|path| path.join("crds").is_dir()) {
        one_operator(s, operator).with_context(|| operator.display().to_string())?;
    }
    Ok(())
}

fn one_operator(s: &Subject, dir: &Path) -> Outcome {
    let started = Instant::now();
    let mut kinds = Vec::new();
    for file in yaml_files(&dir.join("crds"))? {
        let file = file.display().to_string();
        let made = s.kubectl.ok(&["create", "-f", &file, "-o", "jsonpath={.metadata.name}"])?;
        kinds.push(made);
    }
    ensure!(!kinds.is_empty(), "no definitions");
    for kind in &kinds {
        established(s, kind)?;
    }
    println!("{}: {} definitions in {:.1} s", dir.display(), kinds.len(), started.elapsed().as_secs_f64());
    for kind in &kinds {
        eventually("listed and explained", Duration::from_secs(60), || {
            s.kubectl.ok(&["get", kind, "-A"])?;
            let text = s.kubectl.ok(&["explain", kind, "--recursive"])?;
            ensure!(text.contains("metadata\t<ObjectMeta>"), "{kind}: {text}");
            Ok(())
        })?;
    }
    let samples = yaml_files(&dir.join("samples"))?;
    let mut namespaces = BTreeSet::new();
    for file in samples.iter().chain(&yaml_files(&dir.join("invalid"))?) {
        let text = std::fs::read_to_string(file)?;
        let named = text.lines().filter_map(|line| line.trim().strip_prefix("namespace: "));
        namespaces.extend(named.map(|n| n.trim_matches(['"', '\'']).to_owned()));
    }
    for namespace in namespaces {
        // An existing namespace is fine.
        let made = s.kubectl.run(&["create", "namespace", &namespace])?;
        ensure!(made.code == 0 || made.stderr.contains("AlreadyExists"), "{}", made.stderr);
    }
    for file in samples {
        let file = file.display().to_string();
        s.kubectl.ok(&["apply", "--server-side", "--force-conflicts", "-f", &file])?;
        s.kubectl.ok(&["apply", "--server-side", "--force-conflicts", "-f", &file]).context("a second time")?;
    }
    for file in yaml_files(&dir.join("invalid"))? {
        let file = file.display().to_string();
        let refused = s.kubectl.fails(&["create", "-f", &file])?;
        ensure!(refused.stderr.contains("is invalid"), "{file}: {}", refused.stderr);
    }
    for kind in &kinds {
        s.kubectl.ok(&["delete", "crd", kind])?;
    }
    Ok(())
}
