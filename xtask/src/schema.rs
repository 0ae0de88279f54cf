//! `cargo xtask schema --openapi DIR --discovery DIR --protos DIR...`: writes `crates/schema/src/generated/`.
//! DIR of `--protos` are roots of the published API modules (each holds packages with a `generated.proto`).
use crate::{goapi, model, proto, resources, table};
use anyhow::{Context, Result, bail};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Packages that carry protos but no served or exchanged API.
const SKIP: &[&str] = &["testapigroup", "runtime/schema"];

struct Args {
    openapi: PathBuf,
    discovery: PathBuf,
    protos: Vec<PathBuf>,
}

/// Runs the generator.
pub fn run(args: &[String]) -> Result<()> {
    let args = parse(args)?;
    let mut protos = BTreeMap::new();
    let mut packages = BTreeMap::new();
    for root in &args.protos {
        let mut dirs = Vec::new();
        find(root, &mut dirs)?;
        for dir in dirs {
            let file = proto::parse(&fs::read_to_string(dir.join("generated.proto"))?)
                .with_context(|| dir.display().to_string())?;
            let import_path = import_path(root, &dir)?;
            packages.insert(import_path.clone(), goapi::package(&dir, &import_path)?);
            protos.insert(import_path, file);
        }
    }
    let openapi = serde_json::from_slice(&fs::read(args.openapi.join("swagger.json"))?)?;
    let model = model::build(&packages, &protos, &openapi)?;
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/schema/src/generated");
    fs::create_dir_all(&out)?;
    fs::write(out.join("types.rs"), table::render(&model)?)?;
    fs::write(out.join("resources.rs"), resources::render(&args.discovery)?)?;
    println!("{} types, {} kinds", model.types.len(), model.kinds.len());
    Ok(())
}

fn parse(args: &[String]) -> Result<Args> {
    let (mut openapi, mut discovery, mut protos) = (None, None, Vec::new());
    let mut flag = "";
    for arg in args {
        match (flag, arg.as_str()) {
            (_, name @ ("--openapi" | "--discovery" | "--protos")) => flag = name,
            ("--openapi", dir) => openapi = Some(PathBuf::from(dir)),
            ("--discovery", dir) => discovery = Some(PathBuf::from(dir)),
            ("--protos", dir) => protos.push(PathBuf::from(dir)),
            _ => bail!("unexpected argument {arg}"),
        }
    }
    Ok(Args { openapi: openapi.context("--openapi")?, discovery: discovery.context("--discovery")?, protos })
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

/// `…/k8s.io/api@v0.36.2/core/v1` is the package `k8s.io/api/core/v1`.
fn import_path(root: &Path, dir: &Path) -> Result<String> {
    let module = root.file_name().and_then(|n| n.to_str()).context("module name")?;
    let module = module.split('@').next().unwrap_or(module);
    let rest = dir.strip_prefix(root)?.to_str().context("path")?;
    Ok(format!("k8s.io/{module}/{rest}"))
}
