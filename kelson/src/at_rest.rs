//! Encryption at rest of a server's objects: starts it with the command line's options, and adds its metrics and health
//! checks.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use kelson_apiserver::Config;
use kelson_encryption::{Encryption, EncryptionOptions};
use kelson_ranges::record;
use kelson_tasks::{FILES, Tasks};
use serde::{Deserialize, Serialize};

use crate::cli::ServerArgs;
use crate::host;

/// The configuration in a data directory, used if no flag names another one. A restored snapshot puts it there.
pub const CONFIG_FILE: &str = "encryption-config.yaml";
/// The record of the configuration that the server uses, for snapshots.
const RECORD_FILE: &str = "encryption.json";

/// The content of [`RECORD_FILE`].
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConfigRecord {
    config_file: PathBuf,
}

/// Returns the configuration that the server with this data directory used at its last start.
///
/// # Errors
/// The record cannot be read.
pub fn in_use(data_dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    let recorded = record::read::<ConfigRecord>(&data_dir.join(RECORD_FILE))?;
    Ok(recorded.map(|recorded| recorded.config_file))
}

/// Returns the configuration of the flag, else the one in the data directory, and records it.
fn config_file(args: &ServerArgs) -> anyhow::Result<Option<PathBuf>> {
    let own = args.data_dir.join(CONFIG_FILE);
    let file = args.encryption_provider_config.clone().or_else(|| own.exists().then_some(own));
    let record_file = args.data_dir.join(RECORD_FILE);
    match &file {
        Some(file) => {
            let record = ConfigRecord { config_file: std::path::absolute(file)? };
            if record::read(&record_file)?.as_ref() != Some(&record) {
                record::write(&record_file, &record, true)?;
            }
        }
        None if record_file.exists() => {
            std::fs::remove_file(&record_file).context("remove the record of encryption")?
        }
        None => {}
    }
    Ok(file)
}

/// Starts encryption at rest, if a configuration is given.
///
/// # Errors
/// An unreadable or invalid configuration; the message names the flag and the field.
pub async fn start(args: &ServerArgs, tasks: &Tasks) -> anyhow::Result<Option<Arc<Encryption>>> {
    let asked = args.clone();
    let file = FILES.run(move || config_file(&asked)).await?;
    let Some(file) = file.context("--encryption-provider-config")? else { return Ok(None) };
    let options = EncryptionOptions {
        file,
        automatic_reload: args.encryption_provider_config_automatic_reload,
        server_id: host::name().unwrap_or_default(),
        prefix: args.etcd.prefix(),
        tasks: tasks.child("encryption"),
    };
    Ok(Some(Encryption::start(options).await.context("--encryption-provider-config")?))
}

/// Adds the metrics and health checks of encryption to those of the API server.
pub fn show(encryption: Option<Arc<Encryption>>, config: &mut Config) {
    let Some(encryption) = encryption else { return };
    config.registries.push(encryption.metrics());
    if encryption.has_check() {
        config.checks.push(("kms-providers", Arc::new(move || encryption.check())));
    }
}
