//! Every published fixture round-trips: JSON, YAML and protobuf decode to one tree and encode to the same bytes.
//!
//! A separate process: its `main` reports the fixtures as ignored if there are none, which a `#[test]` cannot.
use kelson_codec::{Encoding, decode, encode, peek, proto};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory of the published fixtures, which are not part of this repository. `KELSON_SHARED` is the directory that contains
/// `reference/` (by default one beside the repository); `none` skips the fixtures.
fn fixtures() -> Option<PathBuf> {
    let shared = std::env::var("KELSON_SHARED")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").to_owned());
    (shared != "none").then(|| Path::new(&shared).join("reference/fixtures"))
}

fn stems(dir: &Path) -> Vec<String> {
    let mut stems: Vec<String> = fs::read_dir(dir)
        .unwrap_or_else(|e| panic!("{}: {e}; KELSON_SHARED=none does without", dir.display()))
        .filter_map(|e| e.ok()?.file_name().into_string().ok()?.strip_suffix(".pb").map(str::to_owned))
        .collect();
    stems.sort();
    stems
}

fn check(dir: &Path, stem: &str) -> Result<(), String> {
    let read = |ext: &str| fs::read(dir.join(format!("{stem}.{ext}"))).map_err(|e| e.to_string());
    let (json, yaml, pb) = (read("json")?, read("yaml")?, read("pb")?);
    let mut meta = peek(Encoding::Json, &json).map_err(|e| e.to_string())?;
    if meta.kind.is_empty() {
        // A watch event has no type.
        let (group_version, kind) = stem.rsplit_once('.').ok_or("name")?;
        meta.api_version = group_version.rsplit_once('.').ok_or("name")?.1.to_owned();
        meta.kind = kind.to_owned();
    }
    let ty = meta.type_id().ok_or_else(|| format!("no type for {meta:?}"))?;
    let expected: Value = serde_json::from_slice(&json).map_err(|e| e.to_string())?;
    let from_json = decode(Encoding::Json, Some(ty), &json, true).map_err(|e| format!("json: {e}"))?;
    if !from_json.strict.is_empty() {
        return Err(from_json.strict.to_string());
    }
    same("json", &from_json.value, &expected)?;
    let from_yaml = decode(Encoding::Yaml, Some(ty), &yaml, true).map_err(|e| format!("yaml: {e}"))?;
    same("yaml", &from_yaml.value, &expected)?;
    let (_, from_pb) = proto::decode_as(ty, &pb).map_err(|e| format!("pb: {e}"))?;
    same("pb", &from_pb, &expected)?;
    let encoded = encode(Encoding::Protobuf, Some(ty), &from_json.value).map_err(|e| e.to_string())?;
    if encoded != pb {
        let at = encoded.iter().zip(&pb).position(|(a, b)| a != b).unwrap_or(encoded.len().min(pb.len()));
        return Err(format!("protobuf differs at byte {at}: {} and {} bytes", encoded.len(), pb.len()));
    }
    let stored = kelson_codec::canonical_json(&from_json.value);
    let stored = std::str::from_utf8(&stored).map_err(|e| e.to_string())?;
    let by_tree = proto::encode_message(ty, &from_json.value).map_err(|e| e.to_string())?;
    if proto::encode_stored(ty, stored).map_err(|e| e.to_string())? != by_tree {
        return Err("the stored text gives another message than its tree".to_owned());
    }
    let printed = encode(Encoding::Yaml, Some(ty), &expected).map_err(|e| e.to_string())?;
    let again = decode(Encoding::Yaml, Some(ty), &printed, true).map_err(|e| format!("own yaml: {e}"))?;
    same("own yaml", &again.value, &expected)
}

fn same(what: &str, found: &Value, expected: &Value) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {}", difference("", found, expected)))
}

fn difference(path: &str, a: &Value, b: &Value) -> String {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()) {
                match (a.get(key), b.get(key)) {
                    (Some(x), Some(y)) if x == y => {}
                    (Some(x), Some(y)) => return difference(&format!("{path}.{key}"), x, y),
                    (x, y) => return format!("{path}.{key}: {x:?} but expected {y:?}"),
                }
            }
            String::new()
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let at = a.iter().zip(b).position(|(x, y)| x != y).unwrap_or(0);
            difference(&format!("{path}[{at}]"), &a[at], &b[at])
        }
        _ => format!("{path}: {a} but expected {b}"),
    }
}

fn all_fixtures_round_trip(dir: &Path) {
    let stems = stems(dir);
    assert!(stems.len() > 150, "only {} fixtures", stems.len());
    let failures: Vec<String> = stems.iter().filter_map(|s| check(dir, s).err().map(|e| format!("{s}: {e}"))).collect();
    assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), stems.len(), failures.join("\n"));
}

/// The test harness. A custom one is needed because only a harness can report *ignored* at run time.
fn main() {
    if std::env::args().any(|a| a == "--list") {
        println!("all_fixtures_round_trip: test");
        return;
    }
    let Some(dir) = fixtures() else {
        println!("test all_fixtures_round_trip ... ignored, KELSON_SHARED=none");
        return;
    };
    all_fixtures_round_trip(&dir);
    println!("test all_fixtures_round_trip ... ok");
}
