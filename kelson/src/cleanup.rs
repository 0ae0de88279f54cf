//! `kelson cleanup`: removes what a server or agent created on this machine.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use anyhow::{Context as _, bail};

use crate::cli::CleanupArgs;
use crate::lock::DataDirLock;
use crate::node;

/// Removes everything; continues after errors and reports all of them.
pub async fn run(args: &CleanupArgs) -> anyhow::Result<()> {
    let dir = &args.data_dir;
    let dir = &dir.canonicalize().with_context(|| format!("data directory {}", dir.display()))?;
    let _lock = DataDirLock::take(dir)?;
    let errors = node::run::remove(dir, args.container_runtime_endpoint.as_deref()).await;
    for e in &errors {
        eprintln!("{e}");
    }
    if !errors.is_empty() {
        bail!("failed to remove {} items", errors.len());
    }
    if args.delete_data {
        std::fs::remove_dir_all(dir).with_context(|| format!("delete {}", dir.display()))?;
    }
    Ok(())
}
