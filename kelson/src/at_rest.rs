//! Encryption at rest of a server's objects: starts it with the command line's options, and adds its metrics and health
//! checks.
use std::sync::Arc;

use anyhow::Context as _;
use kelson_apiserver::Config;
use kelson_encryption::{Encryption, EncryptionOptions};
use kelson_tasks::Tasks;

use crate::cli::ServerArgs;
use crate::host;

/// Starts encryption at rest, if a configuration is given.
///
/// # Errors
/// An unreadable or invalid configuration; the message names the flag and the field.
pub async fn start(args: &ServerArgs, tasks: &Tasks) -> anyhow::Result<Option<Arc<Encryption>>> {
    let Some(file) = args.encryption_provider_config.clone() else { return Ok(None) };
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
