//! `kelson cleanup`: removes what a server or agent created on this machine.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::lock::DataDirLock;
use crate::node;

#[derive(Args, Debug)]
pub struct CleanupArgs {
    /// Data directory of the server or agent to clean up.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kelson")]
    pub data_dir: PathBuf,
    /// Also delete the data directory.
    #[arg(long)]
    pub delete_data: bool,
    /// Socket of the container runtime whose pods are removed [default: that of the node's last start]
    #[arg(long, value_name = "unix:///…")]
    pub container_runtime_endpoint: Option<String>,
}

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
