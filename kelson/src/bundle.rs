//! What a data directory contributes to a bundle, and how the content of a bundle takes its place there.
//!
//! A bundle has the layout of a data directory. It is extracted next to its place and becomes valid by one rename to
//! [`PENDING`]; then its parts are moved to their names one by one, and the previous ones to other names. An interruption
//! before that rename leaves the old state; after it, [`complete`] does the rest at the next start.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use kelson_bundle::{Extracted, FORMAT, MANIFEST, Manifest, Passphrase, StoreSummary, Writer};
use kelson_meta::version;
use kelson_platform::files::{private, sync_names};
use tempfile::TempDir;

use crate::at_rest;
use crate::authorities::PKI_DIR;
use crate::control_plane::CLUSTER_DOMAIN;

/// The store's directory, and its file.
pub const STORE: &str = "store";
/// The file of a store within its directory.
pub const STORE_FILE: &str = "store.db";
/// The parts of a data directory that a bundle may have.
const PARTS: [&str; 5] = [STORE, PKI_DIR, at_rest::CONFIG_FILE, "network.json", "node-token"];
/// The files of settings among them.
const SETTINGS: [&str; 2] = ["network.json", "node-token"];
/// A file that only its lock matters of.
const LOCK: &str = "rotation.lock";
/// The extracted bundle whose parts are being moved to their names.
const PENDING: &str = "restore.pending";
/// The prefix of directories of extracted bundles that are not valid yet.
const STAGE: &str = "restore.stage.";
/// The file in [`PENDING`] with the suffix for replaced parts.
const SUFFIX: &str = "suffix";

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
fn names(dir: &Path) -> anyhow::Result<Vec<String>> {
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

/// A bundle that was extracted next to its place. Dropping it deletes it.
pub struct Staged {
    dir: TempDir,
    /// What the bundle says of itself.
    pub extracted: Extracted,
}

impl Staged {
    /// Extracts a bundle below `dir` and checks that it has a store and keys.
    ///
    /// # Errors
    /// The file cannot be read, or is not a bundle that can be restored; the message says why.
    pub fn extract(file: &Path, passphrase: Option<&Passphrase>, dir: &Path) -> anyhow::Result<Self> {
        let from = File::open(file).with_context(|| file.display().to_string())?;
        let dir = tempfile::Builder::new().prefix(STAGE).tempdir_in(dir)?;
        let extracted = kelson_bundle::extract(BufReader::new(from), passphrase, dir.path());
        let extracted = extracted.with_context(|| file.display().to_string())?;
        for needed in [format!("{STORE}/{STORE_FILE}"), format!("{PKI_DIR}/ca.key"), format!("{PKI_DIR}/sa.key")] {
            if !extracted.entries.iter().any(|entry| entry.name == needed) {
                bail!("{} has no {needed}", file.display());
            }
        }
        for entry in &extracted.entries {
            let part = entry.name.split('/').next().unwrap_or_default();
            if part != MANIFEST && !PARTS.contains(&part) {
                bail!("{} has an unexpected entry {:?}; use a newer kelson", file.display(), entry.name);
            }
        }
        Ok(Self { dir, extracted })
    }

    /// Returns the directory with the extracted store.
    pub fn store(&self) -> PathBuf {
        self.dir.path().join(STORE)
    }

    /// Moves the content to its place in a data directory whose lock the caller has. Returns the names of replaced parts.
    ///
    /// # Errors
    /// A file cannot be renamed.
    pub fn install(self, data_dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
        let suffix = format!("before-{}", Timestamp::now().as_second());
        let mut file = private(File::options().write(true).create_new(true)).open(self.dir.path().join(SUFFIX))?;
        file.write_all(suffix.as_bytes())?;
        file.sync_all()?;
        // The whole content is on disk before the first rename.
        for part in [STORE, PKI_DIR].map(|part| self.dir.path().join(part)) {
            sync_names(&part)?;
        }
        sync_names(self.dir.path())?;
        fs::rename(self.dir.keep(), data_dir.join(PENDING)).context("put the snapshot in place")?;
        sync_names(data_dir)?;
        complete(data_dir)
    }
}

/// Completes an installation that was interrupted, and deletes what an earlier interruption left. The caller has the
/// directory's lock. Returns the names of replaced parts.
///
/// # Errors
/// A file cannot be renamed or deleted.
pub fn complete(data_dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    for entry in fs::read_dir(data_dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(STAGE) {
            fs::remove_dir_all(entry.path()).with_context(|| format!("remove {}", entry.path().display()))?;
        }
    }
    let pending = data_dir.join(PENDING);
    let mut replaced = Vec::new();
    if !pending.exists() {
        return Ok(replaced);
    }
    for part in PARTS {
        let (from, to) = (pending.join(part), data_dir.join(part));
        if !from.exists() {
            continue;
        }
        if to.exists() {
            let suffix = fs::read_to_string(pending.join(SUFFIX)).context("read the pending restore")?;
            let aside = data_dir.join(format!("{part}.{suffix}"));
            fs::rename(&to, &aside).with_context(|| format!("keep {}", to.display()))?;
            replaced.push(aside);
        }
        fs::rename(&from, &to).with_context(|| format!("restore {}", to.display()))?;
    }
    sync_names(data_dir)?;
    fs::remove_dir_all(&pending).context("remove the pending restore")?;
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(data: &Path, word: &str) -> Staged {
        let dir = tempfile::Builder::new().prefix(STAGE).tempdir_in(data).unwrap();
        for part in [STORE, PKI_DIR] {
            fs::create_dir(dir.path().join(part)).unwrap();
            fs::write(dir.path().join(part).join("x"), word).unwrap();
        }
        fs::write(dir.path().join("network.json"), word).unwrap();
        let manifest = Manifest {
            format: FORMAT,
            kelson_version: String::new(),
            kubernetes_version: String::new(),
            created: Timestamp::UNIX_EPOCH,
            cluster_domain: String::new(),
            store: None,
        };
        Staged { dir, extracted: Extracted { manifest, entries: Vec::new() } }
    }

    fn content(data: &Path) -> Vec<String> {
        let files = ["store/x", "pki/x", "network.json"];
        files.map(|file| fs::read_to_string(data.join(file)).unwrap_or_default()).to_vec()
    }

    #[test]
    fn an_interruption_leaves_the_old_state_or_leads_to_the_new_one() {
        let data = tempfile::tempdir().unwrap();
        let data = data.path();
        assert!(staged(data, "old").install(data).unwrap().is_empty());
        assert_eq!(content(data), ["old"; 3]);
        // Before the rename: the extracted bundle is deleted.
        let left = staged(data, "new").dir.keep();
        complete(data).unwrap();
        assert!(!left.exists());
        assert_eq!(content(data), ["old"; 3]);
        // After the rename, and after each step of the moves.
        for moves in 0..=5 {
            let word = format!("new-{moves}");
            let one = staged(data, &word);
            fs::write(one.dir.path().join(SUFFIX), format!("before-{moves}")).unwrap();
            fs::rename(one.dir.keep(), data.join(PENDING)).unwrap();
            let mut done = 0;
            for part in [STORE, PKI_DIR, "network.json"] {
                let aside = data.join(format!("{part}.before-{moves}"));
                for (from, to) in [(data.join(part), aside), (data.join(PENDING).join(part), data.join(part))] {
                    if done < moves {
                        fs::rename(from, to).unwrap();
                        done += 1;
                    }
                }
            }
            complete(data).unwrap();
            assert_eq!(content(data), [word.as_str(); 3]);
            assert!(!data.join(PENDING).exists() && data.join(format!("store.before-{moves}")).exists());
            assert!(complete(data).unwrap().is_empty(), "again does nothing");
        }
    }
}
