//! The worst-case cost of the largest documents (a part of `make bench`). Every decoder, patch and compiler gets inputs
//! of three megabytes that are known to be expensive, each in a separate process with the server's allocator. A case
//! that takes more than a second of CPU time or 64 MB beyond the input is printed, and the exit code is not zero.
//! Arguments select cases by name prefix.
mod inputs;

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use inputs::{Case, Work};
use kelson_codec::{Encoding, decode, decode_patch};
use kelson_patch::{FieldManager, FieldSet, json_patch, merge_patch, strategic_merge_patch};
use kelson_schema::{Schema, Shape, TypeId};
use kelson_structural::{Structural, definition};
use serde_json::Value;

const TIME_MS_MAX: u64 = 1000;
const MEMORY_KB_MAX: u64 = 64 * 1024;
/// The environment variable with the case of a child process.
const CASE: &str = "KELSON_DECODERS_CASE";

/// Measures the cases, each in a process that runs this program again.
pub fn run(chosen: &[String]) -> anyhow::Result<()> {
    // Before anything else takes memory.
    if let Ok(word) = std::env::var(CASE) {
        if let Some(work) = Work::of(&word) {
            alone(work);
        }
        return Ok(());
    }
    let cases = inputs::all();
    let mut over = 0;
    println!("| {:<44} | {:>8} | {:>8} | {:<10} |", "input of 3 MB", "ms", "MB", "outcome");
    for case in cases.iter().filter(|(name, ..)| chosen.is_empty() || chosen.iter().any(|c| name.starts_with(c))) {
        match measured(case) {
            Ok((ms, kb, outcome)) => {
                let mark = if ms > TIME_MS_MAX || kb > MEMORY_KB_MAX { " OVER" } else { "" };
                over += usize::from(!mark.is_empty());
                println!("| {:<44} | {ms:>8} | {:>8.1} | {outcome:<10} |{mark}", case.0, kb as f64 / 1024.0);
            }
            Err(why) => {
                over += 1;
                println!("| {:<44} | {why} |", case.0);
            }
        }
    }
    anyhow::ensure!(over == 0, "{over} over {TIME_MS_MAX} ms or {} MB", MEMORY_KB_MAX / 1024);
    Ok(())
}

/// Returns CPU milliseconds, kilobytes, and the result, measured in a separate process.
fn measured((_, work, input): &Case) -> Result<(u64, u64, String), String> {
    let reported = |e: std::io::Error| e.to_string();
    let program = std::env::current_exe().map_err(reported)?;
    let mut command = Command::new(program);
    command.arg("decoders").env(CASE, work.word()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(reported)?;
    child.stdin.take().ok_or("no way in")?.write_all(input).map_err(reported)?;
    let output = child.wait_with_output().map_err(reported)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut words = text.split_whitespace();
    let mut number = || words.next().and_then(|word| word.parse().ok());
    match (number(), number()) {
        (Some(ms), Some(kb)) => Ok((ms, kb, words.next().unwrap_or("?").to_owned())),
        _ => Err(format!("ended: {}", output.status)),
    }
}

/// Returns the value of a line of a file below `/proc/self`, in its own unit.
fn own(file: &str, key: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Runs the case of this process: its input is read, three words are printed.
fn alone(work: Work) {
    let mut input = Vec::with_capacity(kelson_codec::DOCUMENT_BYTES_MAX + 1);
    if std::io::stdin().read_to_end(&mut input).is_err() {
        return;
    }
    // Initializes shared data, which is not counted for this input.
    let _warm = done(work, b"{}\0{}");
    // Resets the high-water mark.
    let reset = std::fs::write("/proc/self/clear_refs", "5");
    let (before_ns, before_kb) = (own("schedstat", ""), own("status", "VmRSS:"));
    let outcome = done(work, &input);
    let (after_ns, after_kb) = (own("schedstat", ""), own("status", "VmHWM:"));
    let outcome = match (reset, outcome) {
        (Err(_), _) => "unmeasured",
        (_, true) => "read",
        (_, false) => "refused",
    };
    println!("{} {} {outcome}", (after_ns - before_ns) / 1_000_000, after_kb.saturating_sub(before_kb));
}

fn kind(name: &str) -> Option<TypeId> {
    Schema::builtin().by_gvk("", "v1", name)
}

/// Runs the operation; returns whether the input was accepted.
fn done(work: Work, input: &[u8]) -> bool {
    let read = |data: &[u8]| decode(Encoding::Json, None, data, true).ok().map(|decoded| decoded.value);
    let read_patch = |data: &[u8]| decode_patch(data, true).ok().map(|decoded| decoded.value);
    let (object, patch) = input.split_at(input.iter().position(|b| *b == 0).unwrap_or(input.len()));
    let two = || Some((read(object)?, read_patch(patch.get(1..)?)?));
    match work {
        Work::Json(ty) => decode(Encoding::Json, ty.and_then(kind), input, true).is_ok(),
        Work::Yaml(ty) => decode(Encoding::Yaml, ty.and_then(kind), input, true).is_ok(),
        Work::Protobuf(ty) => decode(Encoding::Protobuf, kind(ty), input, true).is_ok(),
        Work::JsonPatch => two().is_some_and(|(mut object, patch)| json_patch(&mut object, &patch).is_ok()),
        Work::MergePatch => two().map(|(mut object, patch)| merge_patch(&mut object, patch)).is_some(),
        Work::StrategicPatch => two().is_some_and(|(object, patch)| {
            strategic_merge_patch(object, patch, &Shape::of_kind("", "v1", "Pod")).is_ok()
        }),
        Work::Apply => two().is_some_and(|(live, config)| applied(Shape::of_kind("", "v1", "Pod"), &live, config)),
        Work::ApplyCustom => two().is_some_and(|(live, config)| applied(Shape::Untyped, &live, config)),
        Work::Definition => defined(input),
        Work::Cel => std::str::from_utf8(input).is_ok_and(|text| {
            let any = kelson_cel::Type::Dyn;
            kelson_cel::Env::builder().typed("self", any).build().compile(text).is_ok()
        }),
    }
}

fn applied(shape: Shape, live: &Value, mut config: Value) -> bool {
    if !config.is_object() {
        return false;
    }
    config["apiVersion"] = "v1".into();
    config["kind"] = "Pod".into();
    let manager = FieldManager::new(shape, "v1", "Pod", "", FieldSet::default());
    manager.apply(Some(live), &config, "bench", true, "2026-01-01T00:00:00Z").is_ok()
}

fn defined(input: &[u8]) -> bool {
    let ty = Schema::builtin().by_gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let Ok(decoded) = decode(Encoding::Json, ty, input, true) else { return false };
    let mut value = decoded.value;
    definition::default(&mut value);
    let sound = definition::validate_create(&value).is_empty();
    let versions = value["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let built = versions.iter().all(|version| Structural::parse(&version["schema"]["openAPIV3Schema"]).is_ok());
    sound && built
}
