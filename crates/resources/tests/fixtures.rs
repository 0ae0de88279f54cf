//! Every published fixture, as it is and mutated at random: defaults are idempotent and nothing panics.
// Helpers of a test fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

use jiff::Timestamp;
use kelson_meta::Gvk;
use kelson_resources::{Context, all, convert};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

const MUTATIONS_PER_FIXTURE: usize = 40;

fn fixtures() -> Option<Vec<(String, Value)>> {
    let base = std::env::var_os("KELSON_SHARED").map_or_else(
        || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        std::path::PathBuf::from,
    );
    let Ok(dir) = std::fs::read_dir(base.join("reference/fixtures")) else {
        println!("SKIPPED: no ../shared");
        return None;
    };
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

/// Served kinds' fixtures with their strategies.
fn served() -> Vec<(String, Gvk, &'static dyn kelson_resources::Strategy, Value)> {
    let mut out = Vec::new();
    for (name, v) in fixtures().unwrap_or_default() {
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

#[test]
fn as_published() {
    for (_, gvk, s, v) in served() {
        exercise(&gvk, s, v.clone(), &v);
    }
}

/// Replaces, removes or duplicates one random place.
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

#[test]
fn mutated() {
    let seed: u64 = std::env::var("KELSON_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_260_101);
    println!("KELSON_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for (_, gvk, s, original) in served() {
        for _ in 0..MUTATIONS_PER_FIXTURE {
            let mut v = original.clone();
            for _ in 0..rng.random_range(1..6) {
                mutate(&mut v, &mut rng);
            }
            exercise(&gvk, s, v, &original);
        }
    }
}
