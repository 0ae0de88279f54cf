//! Reads the published packages of the API into the table of types.
use crate::sources::Sources;
use crate::{goapi, model, proto, table};
use anyhow::{Context, Result};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Packages that carry protos but no served or exchanged API.
const SKIP: &[&str] =
    &["testapigroup", "runtime/schema", "metrics/v1alpha1", "apis/custom_metrics", "apis/external_metrics"];

/// Modules that hold packages with a `generated.proto`.
const MODULES: [&str; 5] = ["api", "apiextensions-apiserver", "apimachinery", "kube-aggregator", "metrics"];

/// The packages of the API, by import path.
pub struct Packages {
    /// The declarations by package.
    pub packages: BTreeMap<String, goapi::GoPackage>,
    protos: BTreeMap<String, proto::ProtoFile>,
}

/// Reads all packages.
pub fn read(sources: &Sources) -> Result<Packages> {
    let (mut packages, mut protos) = (BTreeMap::new(), BTreeMap::new());
    for root in MODULES.map(|name| sources.module(name)) {
        let mut dirs = Vec::new();
        find(&root, &mut dirs)?;
        for dir in dirs {
            let file = proto::parse(&fs::read_to_string(dir.join("generated.proto"))?)
                .with_context(|| dir.display().to_string())?;
            let import_path = import_path(&root, &dir)?;
            packages.insert(import_path.clone(), goapi::package(&dir, &import_path)?);
            protos.insert(import_path, file);
        }
    }
    Ok(Packages { packages, protos })
}

impl Packages {
    /// Returns the generated file `types.rs`; `openapi` has the published definitions of the types.
    pub fn render(&self, openapi: &Value) -> Result<String> {
        table::render(&model::build(&self.packages, &self.protos, openapi)?)
    }
}

fn find(dir: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(dir)?.filter_map(|e| Some(e.ok()?.path())).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            find(&path, out)?;
        } else if path.ends_with("generated.proto") && !SKIP.iter().any(|s| dir.to_string_lossy().contains(s)) {
            out.push(dir.to_owned());
        }
    }
    Ok(())
}

/// Returns the import path of a directory: `…/k8s.io/api@v0.36.2/core/v1` is the package `k8s.io/api/core/v1`.
fn import_path(root: &Path, dir: &Path) -> Result<String> {
    let module = root.file_name().and_then(|n| n.to_str()).context("module name")?;
    let module = module.split('@').next().unwrap_or(module);
    let rest = dir.strip_prefix(root)?.to_str().context("path")?;
    Ok(format!("k8s.io/{module}/{rest}"))
}
