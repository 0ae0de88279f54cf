//! `kelson cleanup`: removes what a server or agent made on this machine, in an order in which each step can still work.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::Path;

use anyhow::{Context as _, bail};

use crate::cli::CleanupArgs;
use crate::lock::DataDirLock;

/// Removes everything; goes on past errors and reports them all.
pub async fn run(args: &CleanupArgs) -> anyhow::Result<()> {
    let dir = &args.data_dir;
    let dir = &dir.canonicalize().with_context(|| format!("data directory {}", dir.display()))?;
    let _lock = DataDirLock::take(dir)?;
    let mut errors = Vec::new();
    // A control plane alone makes nothing outside its directory.
    if has_node(dir) {
        errors.extend(kelson_cri::containerd::cleanup(dir).await);
        errors.extend(kelson_proxy::cleanup(dir).await);
        let cgroups = format!("kelson-{}", kelson_net::network_id(dir));
        errors.extend(kelson_kubelet::cleanup::cleanup(&dir.join("kubelet"), &cgroups).await);
        errors.extend(kelson_net::cleanup(dir).await.into_iter().map(|e| e.to_string()));
    }
    for e in &errors {
        eprintln!("{e}");
    }
    if !errors.is_empty() {
        bail!("{} things could not be removed", errors.len());
    }
    if args.delete_data {
        std::fs::remove_dir_all(dir).with_context(|| format!("delete {}", dir.display()))?;
    }
    Ok(())
}

fn has_node(dir: &Path) -> bool {
    kelson_net::ranges::is_reserved(dir) || ["containerd", "net", "cni", "kubelet"].iter().any(|d| dir.join(d).exists())
}
