//! Paths and operations: what clients look up by them are the kind, the action and which parameters are known.
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::schema::{Collector, Version};
use crate::catalog::{ObjectSchema, Served, Sub};

/// The paths of a group version's resources.
pub fn of(resources: &[Arc<Served>], collector: &mut Collector) -> Value {
    let mut paths = Map::new();
    for served in resources {
        let (group, version) = (&served.gvr.group, &served.gvr.version);
        let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        let plural = &served.gvr.resource;
        let within = if served.namespaced { format!("{root}/namespaces/{{namespace}}") } else { root.clone() };
        let collection = format!("{within}/{plural}");
        let object = format!("{collection}/{{name}}");
        let verbs: Vec<&str> = served.verbs.iter().map(String::as_str).collect();
        let place = if served.namespaced { vec!["namespace"] } else { vec![] };
        let named: Vec<&str> = place.iter().copied().chain(["name"]).collect();
        add(
            &mut paths,
            &collection,
            item(served, None, &verbs, &["list", "create", "deletecollection"], &place, collector),
        );
        add(&mut paths, &object, item(served, None, &verbs, &["get", "update", "patch", "delete"], &named, collector));
        if served.namespaced && verbs.contains(&"list") {
            add(&mut paths, &format!("{root}/{plural}"), item(served, None, &verbs, &["list"], &[], collector));
        }
        for sub in &served.subresources {
            let verbs: Vec<&str> = sub.verbs.iter().map(String::as_str).collect();
            let path = format!("{object}/{}", sub.name);
            let wanted = ["get", "create", "update", "patch", "delete"];
            let operations = item(served, Some(sub), &verbs, &wanted, &named, collector);
            add(&mut paths, &path, operations);
        }
    }
    paths.into()
}

fn add(paths: &mut Map<String, Value>, path: &str, item: Option<Value>) {
    if let Some(item) = item {
        paths.insert(path.to_owned(), item);
    }
}

fn item(
    served: &Served,
    sub: Option<&Sub>,
    verbs: &[&str],
    wanted: &[&str],
    place: &[&str],
    collector: &mut Collector,
) -> Option<Value> {
    let mut item = Map::new();
    for verb in wanted.iter().filter(|v| verbs.contains(v)) {
        item.insert(method(verb).to_owned(), operation(served, sub, verb, collector));
    }
    if item.is_empty() {
        return None;
    }
    let v3 = collector.version() == Version::V3;
    let path_parameter = |name: &&str| {
        if v3 {
            json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}})
        } else {
            json!({"name": name, "in": "path", "required": true, "type": "string", "uniqueItems": true})
        }
    };
    let mut parameters: Vec<Value> = place.iter().map(path_parameter).collect();
    parameters.push(query("pretty", "string", v3));
    item.insert("parameters".into(), parameters.into());
    Some(item.into())
}

fn method(verb: &str) -> &'static str {
    match verb {
        "create" => "post",
        "update" => "put",
        "patch" => "patch",
        "delete" | "deletecollection" => "delete",
        _ => "get",
    }
}

fn action(verb: &str) -> &str {
    match verb {
        "create" => "post",
        "update" => "put",
        other => other,
    }
}

fn query(name: &str, ty: &str, v3: bool) -> Value {
    if v3 {
        json!({"name": name, "in": "query", "schema": {"type": ty, "uniqueItems": true}})
    } else {
        json!({"name": name, "in": "query", "type": ty, "uniqueItems": true})
    }
}

/// Parameters by verb, each with its type.
fn parameters(verb: &str) -> &'static [(&'static str, &'static str)] {
    const WRITE: &[(&str, &str)] = &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
    const PATCH: &[(&str, &str)] =
        &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string"), ("force", "boolean")];
    const DELETE: &[(&str, &str)] = &[
        ("dryRun", "string"),
        ("gracePeriodSeconds", "integer"),
        ("orphanDependents", "boolean"),
        ("propagationPolicy", "string"),
    ];
    const LIST: &[(&str, &str)] = &[
        ("allowWatchBookmarks", "boolean"),
        ("continue", "string"),
        ("fieldSelector", "string"),
        ("labelSelector", "string"),
        ("limit", "integer"),
        ("resourceVersion", "string"),
        ("resourceVersionMatch", "string"),
        ("sendInitialEvents", "boolean"),
        ("timeoutSeconds", "integer"),
        ("watch", "boolean"),
    ];
    match verb {
        "create" | "update" => WRITE,
        "patch" => PATCH,
        "delete" | "deletecollection" => DELETE,
        "list" => LIST,
        _ => &[],
    }
}

const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
/// Custom resources have no strategic merge.
const PATCHES_OF_CUSTOM: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];
/// The last of them is for built-in kinds alone.
const PRODUCES: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// What an operation does, in a sentence.
fn sentence(verb: &str, kind: &str, sub: Option<&Sub>) -> String {
    let one = sub.map_or_else(|| format!("one {kind}"), |s| format!("{} of one {kind}", s.name));
    match (verb, sub) {
        ("list", _) => format!("Returns the {kind} objects that match, or streams their changes."),
        ("deletecollection", _) => format!("Deletes the {kind} objects that match."),
        ("create", None) => format!("Stores a new {kind}."),
        ("create", Some(_)) => format!("Posts to {one}."),
        ("update", _) => format!("Replaces {one}."),
        ("patch", _) => format!("Changes parts of {one}."),
        ("delete", _) => format!("Deletes {one}."),
        _ => format!("Reads {one}."),
    }
}

fn operation(served: &Served, sub: Option<&Sub>, verb: &str, collector: &mut Collector) -> Value {
    let gvk = sub.map_or(&served.gvk, |s| &s.gvk);
    let v3 = collector.version() == Version::V3;
    let own = match sub {
        None => served.schema.clone(),
        Some(s) if s.gvk == served.gvk => served.schema.clone(),
        Some(_) => ObjectSchema::builtin(&gvk.group, &gvk.version, &gvk.kind),
    };
    let mut refer = |schema: &ObjectSchema| collector.refer_kind(schema, gvk);
    let body = match verb {
        "create" | "update" => refer(&own),
        "patch" => refer(&ObjectSchema::meta("Patch")).or_else(|| Some(json!({"type": "object"}))),
        "delete" | "deletecollection" => refer(&ObjectSchema::meta("DeleteOptions")),
        _ => None,
    };
    let answer = match (verb, &own) {
        ("list", ObjectSchema::Dynamic(_)) => collector.refer_list(served),
        ("list", _) => collector.refer_kind(&served.list_schema, gvk),
        ("delete" | "deletecollection", _) => collector.refer_kind(&ObjectSchema::meta("Status"), gvk),
        _ => collector.refer_kind(&own, gvk),
    };
    let mut parameters: Vec<Value> = parameters(verb).iter().map(|(name, ty)| query(name, ty, v3)).collect();
    let mut operation = Map::new();
    let group = if served.gvr.group.is_empty() { "core" } else { served.gvr.group.split('.').next().unwrap_or("") };
    operation.insert("description".into(), sentence(verb, &served.gvk.kind, sub).into());
    operation.insert("tags".into(), json!([format!("{group}_{}", served.gvr.version)]));
    let custom = !matches!(served.schema, ObjectSchema::Builtin(_));
    let media: &[&str] = match verb {
        "patch" if custom => &PATCHES_OF_CUSTOM,
        "patch" => &PATCHES,
        _ => &["*/*"],
    };
    let produces = if custom { &PRODUCES[..2] } else { &PRODUCES[..] };
    let ok = answer.unwrap_or_else(|| json!({"type": "string"}));
    if v3 {
        let content: Map<String, Value> = produces.iter().map(|m| ((*m).to_owned(), json!({"schema": ok}))).collect();
        operation.insert(
            "responses".into(),
            json!({"200": {"description": "OK", "content": content}, "401": {"description": "Unauthorized"}}),
        );
        if let Some(body) = body {
            let content: Map<String, Value> =
                media.iter().map(|m| ((*m).to_owned(), json!({"schema": body}))).collect();
            operation.insert("requestBody".into(), json!({"content": content}));
        }
    } else {
        operation.insert("consumes".into(), json!(media));
        operation.insert("produces".into(), json!(produces));
        operation.insert("schemes".into(), json!(["https"]));
        operation.insert(
            "responses".into(),
            json!({"200": {"description": "OK", "schema": ok}, "401": {"description": "Unauthorized"}}),
        );
        if let Some(body) = body {
            parameters.push(json!({"name": "body", "in": "body", "required": verb != "delete" && verb != "deletecollection", "schema": body}));
        }
    }
    operation.insert("parameters".into(), parameters.into());
    operation.insert("x-kubernetes-action".into(), action(verb).into());
    let kind = json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind});
    operation.insert("x-kubernetes-group-version-kind".into(), kind);
    operation.into()
}
