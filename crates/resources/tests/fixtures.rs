//! Objects of every kind, published fixtures and generated samples, unchanged and randomly mutated: defaults are
//! idempotent and nothing panics.
//!
//! A separate process: its `main` reports the published fixtures as ignored if there are none, which a `#[test]` cannot
//! do.
// Helpers of a test fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

use jiff::Timestamp;
use kelson_meta::Gvk;
use kelson_resources::{Context, all, convert};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

const MUTATIONS_PER_FIXTURE: usize = 40;

/// The published fixtures, if there are any: `KELSON_SHARED` names the directory that contains `reference/` (by default
/// next to the repository), and `none` disables them.
fn published() -> Option<Vec<(String, Value)>> {
    let shared = std::env::var("KELSON_SHARED")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").to_owned());
    if shared == "none" {
        return None;
    }
    let path = std::path::Path::new(&shared).join("reference/fixtures");
    let dir =
        std::fs::read_dir(&path).unwrap_or_else(|e| panic!("{}: {e}; KELSON_SHARED=none does without", path.display()));
    let mut out: Vec<(String, Value)> = dir
        .filter_map(|f| {
            let path = f.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let text = name.ends_with(".json").then(|| std::fs::read_to_string(&path).unwrap())?;
            Some((name, serde_json::from_str(&text).unwrap()))
        })
        .collect();
    out.sort_by(|a, b| a.0.cmp(&b.0));
    Some(out)
}

/// An object of every served kind with every field set, from the table.
fn samples() -> Vec<(String, Value)> {
    let of = |r: &kelson_schema::Resource| {
        let ty = kelson_schema::Schema::builtin().by_gvk(r.group, r.version, r.kind).unwrap();
        let mut object = kelson_schema::sample::object(ty);
        let api = if r.group.is_empty() { r.version.to_owned() } else { format!("{}/{}", r.group, r.version) };
        object.insert("apiVersion".into(), api.into());
        object.insert("kind".into(), r.kind.into());
        (format!("{} {}", r.version, r.plural), Value::Object(object))
    };
    kelson_schema::resource::resources().map(of).collect()
}

/// Objects of served kinds, with their strategies.
fn served(objects: Vec<(String, Value)>) -> Vec<(String, Gvk, &'static dyn kelson_resources::Strategy, Value)> {
    let mut out = Vec::new();
    for (name, v) in objects {
        let api = v["apiVersion"].as_str().unwrap_or_default();
        let (group, version) = api.split_once('/').unwrap_or(("", api));
        let kind = v["kind"].as_str().unwrap_or_default();
        let gvk = Gvk::new(group, version, kind);
        for s in all() {
            let o = s.options();
            let served = kelson_schema::resource::resource(group, version, &o.resource);
            if o.group == group && o.kind() == kind && served.is_some() {
                out.push((name.clone(), gvk.clone(), s, v.clone()));
            }
        }
    }
    out
}

fn exercise(gvk: &Gvk, s: &'static dyn kelson_resources::Strategy, mut v: Value, old: &Value) {
    let cx = Context::at(Timestamp::UNIX_EPOCH);
    s.default(&gvk.version, &mut v).unwrap();
    let once = v.clone();
    s.default(&gvk.version, &mut v).unwrap();
    assert_eq!(v, once, "defaults of {gvk} are not idempotent");
    let stored = s.options().storage.clone();
    let Ok(mut v) = convert(gvk, &stored, v) else { return };
    let mut old = convert(gvk, &stored, old.clone()).unwrap_or(Value::Null);
    s.default(&stored.version, &mut v).unwrap();
    s.default(&stored.version, &mut old).unwrap();
    let _ = convert(&stored, gvk, v.clone());
    assert_eq!(s.row(&v, cx.now).len(), s.options().columns.len(), "cells of {gvk}");
    s.row_conditions(&v);
    for field in s.options().fields.iter() {
        s.field_value(&v, field);
    }
    let mut new = v.clone();
    s.prepare_create(&cx, &mut new);
    s.validate_create(&new);
    s.warnings(&new, None);
    let mut new = v.clone();
    s.prepare_update(&cx, &mut new, &old);
    s.validate_update(&new, &old);
    s.warnings(&new, Some(&old));
    for sub in s.options().subresources.iter() {
        let mut new = v.clone();
        s.prepare_subresource_update(&cx, sub, &mut new, &old);
        s.validate_subresource_update(sub, &new, &old);
    }
    s.canonicalize(&mut v);
}

fn as_they_are(objects: Vec<(String, Value)>) {
    let all = served(objects);
    assert!(all.len() > 60, "only {} objects", all.len());
    for (_, gvk, s, v) in all {
        exercise(&gvk, s, v.clone(), &v);
    }
}

/// Replaces, removes or duplicates a random value.
fn mutate(v: &mut Value, rng: &mut StdRng) {
    let junk = || {
        [
            json!(null),
            json!(-1),
            json!("é/..\u{0}"),
            json!([]),
            json!({}),
            json!(true),
            json!("1e9999"),
            json!(i64::MAX),
        ]
    };
    match v {
        Value::Object(o) if !o.is_empty() && rng.random_range(0..8) > 0 => {
            let i = rng.random_range(0..o.len());
            let k = o.keys().nth(i).unwrap().clone();
            if rng.random_range(0..10) == 0 {
                o.remove(&k);
            } else {
                mutate(&mut o[&k], rng);
            }
        }
        Value::Array(a) if !a.is_empty() && rng.random_range(0..8) > 0 => {
            let i = rng.random_range(0..a.len());
            if rng.random_range(0..5) == 0 {
                let again = a[i].clone();
                a.push(again);
            } else {
                mutate(&mut a[i], rng);
            }
        }
        other => {
            let mut all = junk();
            let i = rng.random_range(0..all.len());
            *other = std::mem::take(&mut all[i]);
        }
    }
}

fn mutated(objects: Vec<(String, Value)>) {
    let seed: u64 = std::env::var("KELSON_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_260_101);
    println!("KELSON_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for (_, gvk, s, original) in served(objects) {
        for _ in 0..MUTATIONS_PER_FIXTURE {
            let mut v = original.clone();
            for _ in 0..rng.random_range(1..6) {
                mutate(&mut v, &mut rng);
            }
            exercise(&gvk, s, v, &original);
        }
    }
}

/// A custom harness, because only that can report *ignored* at run time.
fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let listing = std::env::args().any(|a| a == "--list");
    type Check = fn(Vec<(String, Value)>);
    for (name, check, own) in [
        ("as_they_are::samples", as_they_are as Check, true),
        ("as_they_are::published", as_they_are, false),
        ("mutated::samples", mutated, true),
        ("mutated::published", mutated, false),
    ] {
        if !(named.is_empty() || named.iter().any(|n| name.contains(n.as_str()))) {
            continue;
        }
        if listing {
            println!("{name}: test");
            continue;
        }
        match if own { Some(samples()) } else { published() } {
            Some(objects) => {
                check(objects);
                println!("test {name} ... ok");
            }
            None => println!("test {name} ... ignored, KELSON_SHARED=none"),
        }
    }
}
