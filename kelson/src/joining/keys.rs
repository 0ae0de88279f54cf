//! The keys and settings that a joining server receives, as a bundle sealed with its token.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use kelson_bundle::join::{ServerToken, seal, seal_for_vote};
use kelson_bundle::{FORMAT, Manifest};
use kelson_meta::version;
use kelson_pki::ClusterPki;

use crate::authorities::{self, PKI_DIR};
use crate::cluster::CLUSTER_DOMAIN;
use crate::{at_rest, bundle};

/// The CA of the etcd cluster, and the address ranges.
const SETTINGS: [&str; 3] = ["etcd/pki/ca.crt", "etcd/pki/ca.key", "network.json"];

/// Returns the pins of the CAs that the cluster trusts, `sha256:HEX`; the first one signs. Blocks.
///
/// # Errors
/// They cannot be read.
pub fn pins(data_dir: &Path) -> anyhow::Result<Vec<String>> {
    pins_of(&ClusterPki::open(&authorities::options(data_dir), Timestamp::now())?.ca_bundle())
}

/// Returns the pins of CA certificates.
///
/// # Errors
/// There is none, or one is invalid.
pub fn pins_of(ca_pem: &str) -> anyhow::Result<Vec<String>> {
    let certificates = kelson_pki::certificates_from_pem(ca_pem)?;
    certificates.iter().map(|certificate| Ok(kelson_pki::public_key_pin(certificate)?)).collect()
}

/// Seals the keys of the cluster of this data directory with a token; those that a vote needs if `is_vote`. Blocks.
///
/// # Errors
/// The token is for other CAs, or a file cannot be read.
pub fn sealed(data_dir: &Path, token: &ServerToken, is_vote: bool, now: Timestamp) -> anyhow::Result<Vec<u8>> {
    if !pins(data_dir)?.contains(&token.pin()) {
        bail!("the token is for another CA than this cluster's; create one with `kelson token create --server`");
    }
    let manifest = Manifest {
        format: FORMAT,
        kelson_version: version::KELSON_VERSION.to_owned(),
        kubernetes_version: version::SHORT.to_owned(),
        created: now,
        cluster_domain: CLUSTER_DOMAIN.to_owned(),
        store: None,
    };
    let seal = if is_vote { seal_for_vote } else { seal };
    Ok(seal(&parts(data_dir)?, &manifest, token)?)
}

/// Reads what all servers of a cluster have in common, by name in a data directory.
fn parts(data_dir: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    let mut parts = Vec::new();
    let pki = bundle::names(&data_dir.join(PKI_DIR))?.into_iter().map(|name| format!("{PKI_DIR}/{name}"));
    for name in pki.chain(SETTINGS.map(str::to_owned)) {
        let content = read(&data_dir.join(&name))?;
        parts.push((name, content));
    }
    if let Some(config) = at_rest::in_use(data_dir)? {
        parts.push((at_rest::CONFIG_FILE.to_owned(), read(&config)?));
    }
    Ok(parts)
}
