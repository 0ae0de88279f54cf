//! `cargo xtask lint`: `facts/messages.txt` and `docs/reference/metrics.md` are up to date, and the dependencies are allowed. Licences must be among those that a
//! binary under Apache-2.0 may hold, and a crate in two versions must be known (`xtask/duplicates.txt`, a list that only shrinks).
//! It runs only cargo; `deny.toml` has the same rules for cargo-deny, which adds advisories.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Licences that may be linked into the binary.
const ALLOWED: &[&str] =
    &["Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "Unicode-3.0", "Unlicense", "Zlib"];
/// The production platform: crates for other systems are in the lock file and in no binary.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
const DUPLICATES: &str = "duplicates.txt";

/// Runs the checks.
pub fn run() -> Result<()> {
    crate::messages::check()?;
    crate::reference::check()?;
    let metadata = metadata()?;
    let packages = packages(&metadata)?;
    let known = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(DUPLICATES)).context(DUPLICATES)?;
    let known: BTreeSet<&str> = known.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).collect();
    let mut faults = licences(&packages);
    faults.extend(duplicates(&packages, &known));
    ensure!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    println!("{} crates: licences and versions are as they should be", packages.len());
    Ok(())
}

/// Name, version and licence of an external crate.
type Package = (String, String, String);

fn metadata() -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version", "1", "--filter-platform", PLATFORM])
        .output()
        .context("run cargo metadata")?;
    ensure!(out.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
    Ok(serde_json::from_slice(&out.stdout)?)
}

/// Returns the crates that the platform's builds use.
fn packages(metadata: &Value) -> Result<Vec<Package>> {
    let nodes = metadata["resolve"]["nodes"].as_array().context("resolve.nodes")?;
    let used: BTreeSet<&str> = nodes.iter().filter_map(|n| n["id"].as_str()).collect();
    let text = |p: &Value, key: &str| p[key].as_str().unwrap_or_default().to_owned();
    let all = metadata["packages"].as_array().context("packages")?.iter();
    let others = all.filter(|p| p["source"].is_string() && p["id"].as_str().is_some_and(|id| used.contains(id)));
    Ok(others.map(|p| (text(p, "name"), text(p, "version"), text(p, "license"))).collect())
}

fn licences(packages: &[Package]) -> Vec<String> {
    let bad = packages.iter().filter(|(_, _, licence)| !allowed(licence));
    bad.map(|(name, version, licence)| format!("{name} {version}: licence {licence:?} is not allowed")).collect()
}

fn duplicates(packages: &[Package], known: &BTreeSet<&str>) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, version, _) in packages {
        versions.entry(name).or_default().insert(version);
    }
    versions.retain(|_, v| v.len() > 1);
    let new = versions.iter().filter(|(name, _)| !known.contains(*name));
    let mut faults: Vec<String> = new.map(|(name, v)| format!("{name} is there in versions {v:?}")).collect();
    let gone = known.iter().filter(|name| !versions.contains_key(*name));
    faults.extend(gone.map(|name| format!("xtask/{DUPLICATES}: {name} has one version now: take it out")));
    faults
}

/// Reports whether an SPDX expression can be met with allowed licences. `/` is an old way to write OR.
fn allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = either(&tokens, &mut at);
    met && at == tokens.len()
}

fn either(tokens: &[&str], at: &mut usize) -> bool {
    let mut met = both(tokens, at);
    while tokens.get(*at) == Some(&"OR") {
        *at += 1;
        met |= both(tokens, at);
    }
    met
}

fn both(tokens: &[&str], at: &mut usize) -> bool {
    let mut met = one(tokens, at);
    while tokens.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(tokens, at);
    }
    met
}

fn one(tokens: &[&str], at: &mut usize) -> bool {
    let token = tokens.get(*at).copied().unwrap_or_default();
    *at += 1;
    if token == "(" {
        let met = either(tokens, at);
        *at += 1;
        return met;
    }
    // An exception only allows more.
    if tokens.get(*at) == Some(&"WITH") {
        *at += 2;
    }
    ALLOWED.contains(&token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions() {
        for (expression, want) in [
            ("MIT", true),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0-only", false),
            ("MIT OR GPL-3.0-only", true),
            ("MIT AND GPL-3.0-only", false),
            ("(MIT OR GPL-3.0-only) AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("GPL-2.0-only OR MIT AND ISC", true),
            ("", false),
            ("MIT MIT", false),
        ] {
            assert_eq!(allowed(expression), want, "{expression}");
        }
    }

    #[test]
    fn a_second_version_must_be_known_and_a_known_one_must_be_there() {
        let package = |name: &str, version: &str| (name.to_owned(), version.to_owned(), "MIT".to_owned());
        let packages = [package("a", "1.0.0"), package("a", "2.0.0"), package("b", "1.0.0")];
        assert_eq!(duplicates(&packages, &BTreeSet::from(["a"])), Vec::<String>::new());
        assert_eq!(duplicates(&packages, &BTreeSet::new()).len(), 1);
        assert_eq!(duplicates(&packages, &BTreeSet::from(["a", "b"])).len(), 1);
    }
}
