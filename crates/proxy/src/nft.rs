//! Runs `nft`: one script is one transaction. What is in the script is others' business.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::ruleset::Counts;

/// How much of a failed program's words is kept.
const STDERR_BYTES_MAX: usize = 2048;
/// A transaction of ten thousand services takes seconds; one that takes longer than this hangs.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// A failed run.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The program is not installed.
    #[error("nft is not installed (install the package nftables)")]
    Missing,
    /// It cannot be started or spoken to.
    #[error("run nft: {0}")]
    Io(#[from] std::io::Error),
    /// It took too long and was killed.
    #[error("nft did not end within {} seconds", RUN_TIMEOUT.as_secs())]
    Timeout,
    /// It refused; the last of its words.
    #[error("nft failed: {0}")]
    Refused(String),
    /// Its listing cannot be read.
    #[error("read the listing of nft: {0}")]
    Listing(#[from] serde_json::Error),
}

async fn run(args: &[&str], input: &str) -> Result<Vec<u8>, NftError> {
    let mut command = Command::new("nft");
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => NftError::Missing,
        _ => NftError::Io(e),
    })?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A program that ends early breaks the pipe; its own words below are the better error.
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

/// Removes a table (`ip NAME`); no error when there is none.
///
/// # Errors
/// See [`NftError`].
pub async fn delete_table(table: &str) -> Result<(), NftError> {
    apply(&format!("add table {table}\ndelete table {table}\n")).await
}

#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Entry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    chain: Option<Chain>,
    rule: Option<Rule>,
    set: Option<Set>,
    map: Option<Set>,
}

#[derive(Deserialize)]
struct Chain {
    name: String,
    hook: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Rule {
    chain: String,
}

#[derive(Deserialize)]
struct Set {
    name: String,
    #[serde(default)]
    elem: Vec<IgnoredAny>,
}

/// Counts what is in a table, in the form of [`crate::ruleset::RuleSet::expected`]: without base chains and without the
/// content of affinity sets. `fixed` are the chains that do not belong to services.
///
/// # Errors
/// See [`NftError`]; [`NftError::Refused`] when there is no such table.
pub async fn count(table: &str, fixed: &[&str]) -> Result<Counts, NftError> {
    let words: Vec<&str> = ["-j", "list", "table"].into_iter().chain(table.split(' ')).collect();
    counts(&run(&words, "").await?, fixed)
}

fn counts(listing: &[u8], fixed: &[&str]) -> Result<Counts, NftError> {
    let listing: Listing = serde_json::from_slice(listing)?;
    let mut counts = Counts::default();
    let mut rules: BTreeMap<String, usize> = BTreeMap::new();
    for entry in listing.nftables {
        if let Some(chain) = entry.chain.filter(|c| c.hook.is_none() && !fixed.contains(&c.name.as_str())) {
            counts.rules.insert(chain.name, 0);
        }
        if let Some(rule) = entry.rule {
            *rules.entry(rule.chain).or_default() += 1;
        }
        if let Some(set) = entry.set.or(entry.map) {
            if set.name.starts_with("affinity-") {
                counts.sets += 1;
            } else if !set.elem.is_empty() {
                counts.elements.insert(set.name, set.elem.len());
            }
        }
    }
    for (chain, count) in &mut counts.rules {
        *count = rules.get(chain).copied().unwrap_or_default();
    }
    Ok(counts)
}
