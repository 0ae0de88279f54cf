//! `cargo xtask units`: what cargo would compile, without compiling. The number of units of the gate's build is a limit
//! that may only fall, and `cargo test -p X` must build no external crate with other features than that build, or it
//! builds nearly everything again. `crates/features` lists missing features.
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::tidy::units_limit;

/// The gate's build.
const BUILD: &[&str] = &["build", "--workspace", "--all-targets"];
/// The platform of the gate: other platforms build other crates.
const IS_GATE: bool = cfg!(all(target_arch = "x86_64", target_os = "linux"));

/// Counts the units and compares them with the limit.
pub fn run() -> Result<()> {
    let gate = graph(BUILD)?;
    let built = features(&gate);
    let mut faults = Vec::new();
    // Cargo uses one CPU to resolve a package, so each half of the packages gets one.
    let members = members()?;
    let (some, others) = members.split_at(members.len() / 2);
    let compared: Result<Vec<Vec<String>>> = std::thread::scope(|scope| {
        let others = scope.spawn(|| compare(others, &built));
        let some = compare(some, &built);
        [some, others.join().map_err(|_| anyhow::anyhow!("the comparison panicked"))?].into_iter().collect()
    });
    faults.extend(compared?.concat());
    let (count, limit) = (gate.len(), units_limit()?);
    if IS_GATE && count > limit {
        faults.push(format!("cargo {} is {count} units, where {limit} are allowed (build.units)", BUILD.join(" ")));
    }
    ensure!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    println!("{count} units to compile; every package is tested with the features of that build");
    Ok(())
}

/// Returns what the tests of some packages would build differently than the gate.
fn compare(members: &[String], built: &Features) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for member in members {
        let units = graph(&["test", "--no-run", "--package", member])?;
        faults.extend(other_features(member, &features(&units), built));
    }
    Ok(faults)
}

/// Returns the number of units in the gate's build.
pub fn count() -> Result<usize> {
    Ok(graph(BUILD)?.len())
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Returns the units of a command. Cargo prints them without compiling, as an unstable option that has had this form
/// since 2020.
fn graph(command: &[&str]) -> Result<Vec<Value>> {
    let mut cargo = cargo();
    cargo.args(command).args(["--locked", "--unit-graph", "-Zunstable-options"]).env("RUSTC_BOOTSTRAP", "1");
    let out = cargo.output().context("run cargo")?;
    ensure!(out.status.success(), "cargo {}: {}", command.join(" "), String::from_utf8_lossy(&out.stderr));
    let mut graph: Value = serde_json::from_slice(&out.stdout)?;
    match graph["units"].take() {
        Value::Array(units) => Ok(units),
        _ => anyhow::bail!("cargo {}: no units", command.join(" ")),
    }
}

fn members() -> Result<Vec<String>> {
    let out = cargo().args(["metadata", "--locked", "--no-deps", "--format-version", "1"]).output()?;
    ensure!(out.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
    let metadata: Value = serde_json::from_slice(&out.stdout)?;
    let packages = metadata["packages"].as_array().context("packages")?;
    Ok(packages.iter().filter_map(|p| p["name"].as_str().map(str::to_owned)).collect())
}

/// The sets of features with which each package and target is compiled.
type Features = BTreeMap<String, BTreeSet<Vec<String>>>;

fn features(units: &[Value]) -> Features {
    let mut all = Features::new();
    for unit in units.iter().filter(|u| u["mode"] == "build") {
        let package = unit["pkg_id"].as_str().and_then(|id| id.rsplit(['/', '#']).next()).unwrap_or_default();
        let listed = unit["features"].as_array().into_iter().flatten();
        let set: Vec<String> = listed.filter_map(|f| f.as_str().map(str::to_owned)).collect();
        all.entry(format!("{package} {}", unit["target"]["name"].as_str().unwrap_or_default()))
            .or_default()
            .insert(set);
    }
    all
}

/// Returns what a package's tests would build with other features than `built`.
fn other_features(member: &str, tested: &Features, built: &Features) -> Vec<String> {
    let mut found = Vec::new();
    for (name, sets) in tested {
        let known = built.get(name);
        for set in sets.iter().filter(|set| !known.is_some_and(|known| known.contains(*set))) {
            let most = known.and_then(|known| known.iter().max_by_key(|set| set.len()));
            let missing: Vec<&String> = most.into_iter().flatten().filter(|f| !set.contains(*f)).collect();
            found.push(format!(
                "cargo test -p {member}: {name} lacks {missing:?}: name them in crates/features/Cargo.toml"
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn unit(package: &str, mode: &str, features: &[&str]) -> Value {
        json!({"pkg_id": format!("registry+x#{package}"), "mode": mode, "features": features, "target": {"name": "a"}})
    }

    #[test]
    fn a_feature_that_one_package_lacks_is_named() {
        let built = features(&[unit("a@1", "build", &["default", "std"]), unit("b@1", "test", &[])]);
        assert_eq!(built.len(), 1, "tests are no one's dependency");
        let same = features(&[unit("a@1", "build", &["default", "std"])]);
        assert_eq!(other_features("x", &same, &built), Vec::<String>::new());
        let fewer = features(&[unit("a@1", "build", &["default"])]);
        let found = other_features("x", &fewer, &built);
        assert!(found.len() == 1 && found[0].contains("a@1 a lacks [\"std\"]"), "{found:?}");
    }
}
