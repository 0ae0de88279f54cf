//! `cargo xtask sbom`: what a binary of the package `kelson` is made of, as CycloneDX 1.5 JSON (<https://cyclonedx.org/docs/1.5/json/>).
//!
//! Cargo's resolution for one target gives the crates that the program contains: normal dependencies of `kelson`, and theirs. Those of
//! builds and tests are left out. One lock file and one target give the same bytes.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

/// The package whose binary is described.
const PACKAGE: &str = "kelson";

/// Prints the document for a target triple; `version` and `time` are those of the release.
pub fn run(target: &str, version: &str, time: &str) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the repository")?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(["metadata", "--locked", "--format-version", "1", "--filter-platform", target]);
    let output = command.output().context("run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("read cargo's metadata")?;
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).context("Cargo.lock")?;
    println!("{:#}", document(&metadata, &checksums(&lock), version, time)?);
    Ok(())
}

/// SHA-256 sums of the crates' archives, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        line.map(|rest| rest.trim_end_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]").skip(1);
    packages
        .filter_map(|package| {
            Some(((value(package, "name")?, value(package, "version")?), value(package, "checksum")?))
        })
        .collect()
}

fn document(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
    version: &str,
    time: &str,
) -> anyhow::Result<Value> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (text(&package["id"]), package)).collect();
    let nodes: BTreeMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|node| (text(&node["id"]), node)).collect();
    let root = packages.iter().find(|(_, package)| package["name"] == PACKAGE).map(|(id, _)| id.clone());
    let root = root.with_context(|| format!("no package {PACKAGE}"))?;

    // All that normal dependencies lead to.
    let normal = |id: &str| -> Vec<String> {
        let deps = list(&nodes.get(id).cloned().unwrap_or_default()["deps"]);
        let is_normal = |dep: &Value| list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let mut ids: Vec<String> = deps.iter().filter(|dep| is_normal(dep)).map(|dep| text(&dep["pkg"])).collect();
        ids.sort();
        ids
    };
    let (mut seen, mut queue) = (BTreeSet::from([root.clone()]), vec![root.clone()]);
    while let Some(id) = queue.pop() {
        queue.extend(normal(&id).into_iter().filter(|next| seen.insert(next.clone())));
    }

    let reference = |id: &str| {
        let package = &packages[id];
        format!("pkg:cargo/{}@{}", text(&package["name"]), text(&package["version"]))
    };
    let component = |id: &String| {
        let package = &packages[id];
        let (name, number) = (text(&package["name"]), text(&package["version"]));
        let mut component = json!({
            "type": "library", "bom-ref": reference(id), "name": name, "version": number, "purl": reference(id), "scope": "required",
        });
        if let Some(license) = package["license"].as_str() {
            // An older way to write OR.
            component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
        }
        if let Some(sum) = checksums.get(&(name, number)) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
        }
        component
    };
    let components: Vec<Value> = seen.iter().filter(|id| **id != root).map(component).collect();
    let dependencies: Vec<Value> = seen
        .iter()
        .map(|id| json!({"ref": reference(id), "dependsOn": normal(id).iter().map(|id| reference(id)).collect::<Vec<_>>()}))
        .collect();
    let main = json!({
        "type": "application", "bom-ref": reference(&root), "name": PACKAGE, "version": version,
        "licenses": [{"expression": packages[&root]["license"]}],
    });
    Ok(json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"timestamp": time, "component": main},
        "components": components, "dependencies": dependencies,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_builds_and_tests_need_is_left_out() {
        let package = |name: &str, license: &str| json!({"id": format!("{name} id"), "name": name, "version": "1.0.0", "license": license});
        let dep = |name: &str, kinds: Value| json!({"pkg": format!("{name} id"), "dep_kinds": kinds});
        let normal = || json!([{"kind": null}]);
        let metadata = json!({
            "packages": [package("kelson", "Apache-2.0"), package("a", "MIT/Apache-2.0"), package("b", "MIT"), package("cc", "MIT"), package("t", "MIT")],
            "resolve": {"nodes": [
                {"id": "kelson id", "deps": [dep("a", normal()), dep("cc", json!([{"kind": "build"}])), dep("t", json!([{"kind": "dev"}]))]},
                {"id": "a id", "deps": [dep("b", json!([{"kind": "dev"}, {"kind": null}]))]},
                {"id": "b id", "deps": [dep("a", normal())]},
                {"id": "cc id", "deps": []},
                {"id": "t id", "deps": []},
            ]},
        });
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"00ff\"\n\n[[package]]\nname = \"kelson\"\nversion = \"1.0.0\"\n";
        let document = document(&metadata, &checksums(lock), "2.0.0", "2026-01-02T03:04:05Z").unwrap();
        let names: Vec<&str> =
            document["components"].as_array().unwrap().iter().filter_map(|c| c["name"].as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let a = &document["components"][0];
        assert_eq!((&a["purl"], &a["hashes"][0]["content"]), (&json!("pkg:cargo/a@1.0.0"), &json!("00ff")));
        assert_eq!(a["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(document["metadata"]["component"]["version"], "2.0.0");
        assert_eq!(document["dependencies"].as_array().unwrap().len(), 3);
    }
}
