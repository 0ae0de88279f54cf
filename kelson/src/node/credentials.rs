//! `kelson credential-provider check`, and the record of a node's settings that it reads. The check itself is
//! `kelson_credentials::check`.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::args::ImageArgs;

/// The file in a node's directory with the paths of its credential providers.
const FILE: &str = "kubelet/image-credential-provider.json";

/// Records the settings of a node.
pub fn remember(dir: &Path, args: &ImageArgs) -> anyhow::Result<()> {
    let path = dir.join(FILE);
    let files = (&args.image_credential_provider_config, &args.image_credential_provider_bin_dir);
    let (Some(config), Some(bin_dir)) = files else {
        return match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).with_context(|| path.display().to_string()),
            _ => Ok(()),
        };
    };
    let absolute = |p: &Path| std::path::absolute(p).unwrap_or_else(|_| p.to_owned());
    let noted = json!({"config": absolute(config), "binDir": absolute(bin_dir)});
    std::fs::write(&path, noted.to_string()).with_context(|| path.display().to_string())
}

fn remembered(dir: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let Ok(text) = std::fs::read(dir.join(FILE)) else {
        bail!(
            "the node in {} has no credential providers; give --config and --bin-dir, or another node's --data-dir",
            dir.display()
        );
    };
    let noted: Value = serde_json::from_slice(&text).with_context(|| dir.join(FILE).display().to_string())?;
    let path = |key: &str| noted[key].as_str().map(PathBuf::from).with_context(|| format!("{FILE}: no {key}"));
    Ok((path("config")?, path("binDir")?))
}

/// Runs the providers that match an image and prints the report. Returns the report's error, if there is one.
pub async fn check(image: &str, files: Option<(PathBuf, PathBuf)>, data_dir: &Path) -> anyhow::Result<()> {
    let (config, bin_dir) = files.map_or_else(|| remembered(data_dir), Ok)?;
    let report = kelson_credentials::check::check(image, &config, &bin_dir).await;
    out!("{}", report.text);
    report.fault.map_or(Ok(()), |fault| Err(fault.into()))
}
