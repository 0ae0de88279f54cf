//! Compares the generated documents with the published ones: every path, operation, parameter, body, response and definition.
//! Descriptions are Kelson's own, so only their presence is compared, except those that are composed by rule.
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::*;

/// Paths in the published documents that are not served, with the reason.
const NOT_SERVED: [(&str, &str); 2] =
    [("/logs/", "serves no files of the host"), ("/logs/{logpath}", "serves no files of the host")];
/// Published documents that this server does not have.
const NO_DOCUMENT: [&str; 1] = ["logs"];
/// Media types of the alpha feature `CBORServingAndStorage`, which is off by default; the published documents were made with all gates
/// on.
const GATED: [&str; 3] = ["application/cbor", "application/cbor-seq", "application/apply-patch+cbor"];
/// Paths whose descriptions are only compared by presence.
const PROSE: [&str; 2] = ["/.well-known/openid-configuration/", "/openid/v1/jwks/"];

fn reference() -> Option<PathBuf> {
    let shared = std::env::var("KELSON_SHARED")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").to_owned());
    (shared != "none").then(|| PathBuf::from(shared).join("reference/openapi"))
}

fn read(path: &std::path::Path) -> Value {
    let bytes =
        std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}; KELSON_SHARED=none does without", path.display()));
    kelson_meta::from_json(&bytes).expect("JSON")
}

/// Removes descriptions and gated media types, and sorts lists that are sets.
fn bare(value: &Value, key: &str) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(k, _)| !GATED.contains(&k.as_str()) && *k != "x-kubernetes-unions")
            .map(|(k, v)| match v {
                Value::String(_) if k == "description" => (k.clone(), "…".into()),
                _ => (k.clone(), bare(v, k)),
            })
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(list) => {
            let mut list: Vec<Value> =
                list.iter().filter(|v| !v.as_str().is_some_and(|v| GATED.contains(&v))).map(|v| bare(v, key)).collect();
            if key == "required" {
                list.sort_by_key(Value::to_string);
            }
            list.into()
        }
        other => other.clone(),
    }
}

/// The parameters with references resolved, sorted; descriptions that are composed by rule are kept.
fn parameters(list: &Value, document: &Value) -> Value {
    let of = |p: &Value| {
        let found = p["$ref"].as_str().map_or(p, |r| document.pointer(&r[1..]).unwrap_or(p));
        let mut out = bare(found, "");
        let shared = p["$ref"].is_string();
        if found["name"] == "name" {
            out["description"] = found["description"].clone();
        }
        (format!("{}/{}", found["name"], found["in"]), json!({"parameter": out, "shared": shared}))
    };
    let all: BTreeMap<String, Value> = list.as_array().into_iter().flatten().map(of).collect();
    json!(all)
}

fn operation(path: &str, operation: &Value, document: &Value) -> Value {
    let mut out = bare(operation, "");
    if !PROSE.contains(&path) {
        out["description"] = operation["description"].clone();
    }
    out["parameters"] = parameters(&operation["parameters"], document);
    out
}

/// The operations by path and method.
fn operations(document: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, facts) in item.as_object().expect("an item") {
            let facts =
                if method == "parameters" { parameters(facts, document) } else { operation(path, facts, document) };
            all.insert(format!("{path} {method}"), facts);
        }
    }
    all
}

/// Collects the differences of two trees.
fn differences(at: &str, ours: &Value, theirs: &Value, out: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let at = format!("{at} . {key}");
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => differences(&at, a, b, out),
                    (a, b) => out.push(format!("{at}: {} != {}", shown(a), shown(b))),
                }
            }
        }
        (a, b) if a != b => out.push(format!("{at}: {} != {}", shown(Some(a)), shown(Some(b)))),
        _ => {}
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or("nothing".into(), |v| v.to_string().chars().take(300).collect())
}

fn compare(name: &str, ours: &Value, theirs: &Value, wrong: &mut Vec<String>) -> usize {
    let (a, b) = (operations(ours), operations(theirs));
    for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
        let path = key.split(' ').next().unwrap_or_default();
        match (a.get(key), b.get(key)) {
            (Some(a), Some(b)) => differences(&format!("{name}: {key}"), a, b, wrong),
            (None, Some(_)) if NOT_SERVED.iter().any(|(p, _)| *p == path) => {}
            (a, _) => wrong.push(format!("{name}: {key}: only {}", if a.is_some() { "ours" } else { "theirs" })),
        }
    }
    b.len()
}

/// Fails with the differences. The same difference at many paths is reported once.
fn check(wrong: &[String]) {
    let mut kinds: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for text in wrong {
        let kind = text.split_once(" . ").map_or(text.as_str(), |(_, kind)| kind);
        kinds.entry(kind).or_insert((0, text)).0 += 1;
    }
    let report: Vec<String> = kinds.values().map(|(count, first)| format!("{count} times, as in {first}")).collect();
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), report.join("\n"));
}

#[test]
fn version_2_has_the_published_paths() {
    let Some(dir) = reference() else {
        return println!("test version_2_has_the_published_paths ... ignored, KELSON_SHARED=none");
    };
    let mut wrong = Vec::new();
    let theirs = read(&dir.join("swagger.json"));
    let ours = v2(&Catalog::builtin());
    let compared = compare("v2", &ours, &theirs, &mut wrong);
    assert!(compared > 1_000, "only {compared} compared");
    let (a, b) = (ours["definitions"].as_object().unwrap(), theirs["definitions"].as_object().unwrap());
    for name in b.keys().filter(|name| !a.contains_key(*name)) {
        wrong.push(format!("definition {name} is missing"));
    }
    for key in ["swagger", "security", "securityDefinitions"] {
        differences(key, &ours[key], &theirs[key], &mut wrong);
    }
    check(&wrong);
}

#[test]
fn version_3_has_the_published_documents() {
    let Some(dir) = reference() else {
        return println!("test version_3_has_the_published_documents ... ignored, KELSON_SHARED=none");
    };
    let catalog = Catalog::builtin();
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for entry in std::fs::read_dir(dir.join("v3")).expect("the documents") {
        let path = entry.expect("a file").path();
        let file = path.file_name().and_then(|n| n.to_str()).expect("a name");
        let name = file.strip_suffix("_openapi.json").expect(file).replace("__", "/");
        if NO_DOCUMENT.contains(&name.as_str()) {
            continue;
        }
        let theirs = read(&path);
        let Some(ours) = v3(&catalog, &name) else {
            wrong.push(format!("{name} is missing"));
            continue;
        };
        compared += compare(&name, &ours, &theirs, &mut wrong);
        let names = |d: &Value| {
            d["components"]["schemas"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(k, _)| k.clone())
                .collect::<BTreeSet<_>>()
        };
        let (a, b) = (names(&ours), names(&theirs));
        wrong.extend(a.symmetric_difference(&b).map(|n| format!("{name}: schema {n} is ours: {}", a.contains(n))));
        differences(
            &name,
            &ours["components"]["securitySchemes"],
            &theirs["components"]["securitySchemes"],
            &mut wrong,
        );
    }
    assert!(compared > 1_000, "only {compared} compared");
    check(&wrong);
}
