//! What a data directory contributes to a bundle.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;

use anyhow::Context as _;
use jiff::Timestamp;
use kelson_bundle::{FORMAT, Manifest, Passphrase, StoreSummary, Writer};
use kelson_meta::version;
use kelson_platform::files::private;

use crate::at_rest;
use crate::authorities::PKI_DIR;
use crate::cluster::CLUSTER_DOMAIN;

/// The store's directory, and its file.
pub const STORE: &str = "store";
/// The file of a store within its directory.
pub const STORE_FILE: &str = "store.db";
/// The files of settings.
const SETTINGS: [&str; 2] = ["network.json", "node-token"];
/// The file whose lock a rotation of CAs takes; it has no content.
const LOCK: &str = "rotation.lock";

/// Writes a bundle of a data directory to a new file: CAs and keys, encryption configuration, settings, and the store in
/// `store_file`.
///
/// # Errors
/// The file exists or cannot be written; a part cannot be read.
pub fn write(
    data_dir: &Path,
    (store_file, summary): (&Path, StoreSummary),
    passphrase: Option<&Passphrase>,
    file: &Path,
) -> anyhow::Result<()> {
    let manifest = Manifest {
        format: FORMAT,
        kelson_version: version::KELSON_VERSION.to_owned(),
        kubernetes_version: version::SHORT.to_owned(),
        created: Timestamp::now(),
        cluster_domain: CLUSTER_DOMAIN.to_owned(),
        store: Some(summary),
    };
    let open = private(File::options().write(true).create_new(true)).open(file);
    let mut writer = Writer::new(BufWriter::new(open?), passphrase, &manifest)?;
    for name in names(&data_dir.join(PKI_DIR))? {
        writer.add_file(&format!("{PKI_DIR}/{name}"), &data_dir.join(PKI_DIR).join(&name))?;
    }
    for name in SETTINGS {
        let path = data_dir.join(name);
        if path.exists() {
            writer.add_file(name, &path)?;
        }
    }
    if let Some(config) = at_rest::in_use(data_dir)? {
        writer.add_file(at_rest::CONFIG_FILE, &config)?;
    }
    writer.add_file(&format!("{STORE}/{STORE_FILE}"), store_file)?;
    let written = writer.finish()?.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    written.sync_all()?;
    Ok(())
}

/// Returns the names of the files with CAs and keys. Certificates of the running process are in a directory and belong to
/// it only.
pub fn names(dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && name != LOCK && !name.starts_with('.') && !name.contains(".tmp") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
