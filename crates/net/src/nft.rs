//! Runs `nft`, for the pod network and for the proxy: one script is one transaction. The callers write the scripts.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of `aside`; as a CNI plugin a process of its own")]

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// The maximum size of a failed program's output that is kept.
const STDERR_BYTES_MAX: usize = 2048;
/// The time limit of a run. A transaction of ten thousand services takes seconds.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// The last senders of this program's changes, by their ports of netlink: processes of `nft`, whose ports are their IDs, and sockets.
static RECENT: Mutex<VecDeque<u32>> = Mutex::new(VecDeque::new());
/// The number of remembered processes; the changes of a process are reported while it runs.
const RECENT_MAX: usize = 64;

/// Whether changes from this port of netlink are this program's own.
pub(crate) fn is_own(process: u32) -> bool {
    RECENT.lock().unwrap_or_else(PoisonError::into_inner).contains(&process)
}

/// Notes the port of a sender before it changes anything.
pub(crate) fn remember(process: Option<u32>) {
    let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
    recent.extend(process);
    while recent.len() > RECENT_MAX {
        recent.pop_front();
    }
}

/// A failed run of `nft`.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The program is not installed.
    #[error("nft is not installed (install the package nftables)")]
    Missing,
    /// It could not be started or written to.
    #[error("run nft: {0}")]
    Io(#[from] std::io::Error),
    /// It exceeded the time limit and was killed.
    #[error("nft timed out after {} seconds", RUN_TIMEOUT.as_secs())]
    Timeout,
    /// It rejected the script; the end of its output.
    #[error("nft failed: {0}")]
    Refused(String),
    /// Its listing is invalid.
    #[error("read the listing of nft: {0}")]
    Listing(#[from] serde_json::Error),
}

impl NftError {
    /// Whether `nft` ran and found no such table.
    pub fn is_missing_table(&self) -> bool {
        // nft prints `strerror(ENOENT)` and sets no locale.
        matches!(self, Self::Refused(output) if output.contains("No such file or directory"))
    }
}

async fn run(args: &[&str], input: &str) -> Result<Vec<u8>, NftError> {
    let mut command = Command::new("nft");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => NftError::Missing,
        _ => NftError::Io(e),
    })?;
    // Before it receives the script.
    remember(child.id());
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A program that ends early breaks the pipe; its own output below is the better error.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let both = async { tokio::join!(feed, child.wait_with_output()).1 };
    let output = tokio::time::timeout(RUN_TIMEOUT, both).await.map_err(|_| NftError::Timeout)??;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let start = output.stderr.len().saturating_sub(STDERR_BYTES_MAX);
    Err(NftError::Refused(String::from_utf8_lossy(&output.stderr[start..]).trim().to_owned()))
}

/// Applies one script as one transaction.
///
/// # Errors
/// See [`NftError`]; nothing was changed then.
pub async fn apply(script: &str) -> Result<(), NftError> {
    run(&["-f", "-"], script).await.map(drop)
}

/// Removes a table (`ip NAME`); a missing one is not an error.
///
/// # Errors
/// See [`NftError`].
pub async fn delete_table(table: &str) -> Result<(), NftError> {
    apply(&format!("add table {table}\ndelete table {table}\n")).await
}

/// Returns the content of a table (`ip NAME`) in nft's JSON.
///
/// # Errors
/// See [`NftError`]; [`NftError::Refused`] when the table does not exist.
pub async fn list_table(table: &str) -> Result<Vec<u8>, NftError> {
    let words: Vec<&str> = ["-j", "list", "table"].into_iter().chain(table.split(' ')).collect();
    run(&words, "").await
}

/// Returns the named counters of a table (`ip NAME`) in nft's JSON.
///
/// # Errors
/// See [`NftError`]; [`NftError::Refused`] when the table does not exist.
pub async fn list_counters(table: &str) -> Result<Vec<u8>, NftError> {
    let words: Vec<&str> = ["-j", "list", "counters", "table"].into_iter().chain(table.split(' ')).collect();
    run(&words, "").await
}
