//! `cargo xtask cri --proto FILE`: generates `crates/cri/src/proto/generated.rs`, the message types of the Container
//! Runtime Interface, from the published `api.proto`. Only field names, numbers and types are used; no comment is. The
//! calls themselves are a table in `kelson_cri::client`.

use std::path::{Path, PathBuf};
use std::process::Command;

const OUT: &str = "crates/cri/src/proto/generated.rs";
const HEADER: &str = "\
//! The messages of CRI `runtime.v1`. Made by `cargo xtask cri`; do not edit. The calls that carry them are in
//! `crate::client`.
";

/// Runs the generator; `args` are the arguments after `xtask cri`.
pub fn run(args: &[String]) -> Result<(), String> {
    let proto = match args {
        [flag, file] if flag == "--proto" => PathBuf::from(file),
        _ => return Err("usage: cargo xtask cri --proto FILE".to_owned()),
    };
    let set = compile(&proto)?;
    let out_dir = std::env::temp_dir().join(format!("kelson-xtask-cri-{}", std::process::id()));
    std::fs::create_dir_all(&out_dir).map_err(|e| format!("{}: {e}", out_dir.display()))?;
    let result = generate(set, &out_dir);
    let _ = std::fs::remove_dir_all(&out_dir);
    result
}

fn compile(proto: &Path) -> Result<prost_types::FileDescriptorSet, String> {
    let dir = proto.parent().ok_or("the proto file has no directory")?;
    let mut compiler = protox::Compiler::new([dir]).map_err(|e| e.to_string())?;
    compiler.include_source_info(false).include_imports(false);
    compiler.open_file(proto).map_err(|e| e.to_string())?;
    Ok(compiler.file_descriptor_set())
}

fn generate(mut set: prost_types::FileDescriptorSet, out_dir: &Path) -> Result<(), String> {
    for file in &mut set.file {
        // Calls are written by hand, so that a client has one generic function instead of one per call.
        file.service.clear();
    }
    prost_build::Config::new()
        .btree_map(["."])
        // Contains passwords: its Debug is written by hand and hides them.
        .skip_debug(["AuthConfig"])
        .out_dir(out_dir)
        .compile_fds(set)
        .map_err(|e| e.to_string())?;
    let made = out_dir.join("runtime.v1.rs");
    let body = std::fs::read_to_string(&made).map_err(|e| format!("{}: {e}", made.display()))?;
    let body: String =
        body.lines().filter(|l| !l.trim_start().starts_with("//")).fold(String::from(HEADER), |mut all, line| {
            all.push_str(line);
            all.push('\n');
            all
        });
    std::fs::write(OUT, body).map_err(|e| format!("{OUT}: {e}"))?;
    let status = Command::new("rustfmt").args(["--edition", "2024", OUT]).status();
    match status {
        Ok(s) if s.success() => Ok(()),
        Ok(s) => Err(format!("rustfmt: {s}")),
        Err(e) => Err(format!("rustfmt: {e}")),
    }
}
