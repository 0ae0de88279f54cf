//! `kelson image import`: passes image archives to the containerd of a running node.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use kelson_cri::containerd::{ContainerdConfig, Importer};

/// Imports each archive and prints its images; continues after a failed one, and returns an error at the end.
pub async fn import(files: &[PathBuf], data_dir: &Path, endpoint: Option<&str>) -> anyhow::Result<()> {
    let endpoint = match endpoint {
        Some(e) => e.to_owned(),
        None => {
            let config = ContainerdConfig::new(data_dir)?;
            if !config.socket().exists() {
                bail!(
                    "no node runs with data directory {}: {} does not exist",
                    data_dir.display(),
                    config.socket().display()
                );
            }
            config.endpoint()
        }
    };
    let importer = Importer::new(&endpoint).with_context(|| format!("connect to {endpoint}"))?;
    let mut failed = 0;
    for file in files {
        match importer.import(file).await {
            Ok(images) => images.iter().for_each(|i| outln!("imported {} {}", i.name, i.digest)),
            Err(e) => {
                eprintln!("{e}");
                failed += 1;
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} archives were not imported", files.len());
    }
    Ok(())
}
