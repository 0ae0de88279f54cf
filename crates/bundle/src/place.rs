//! How the content of a bundle takes its place in a data directory, whose layout it has.
//!
//! A bundle is extracted next to its place and becomes valid by one rename to [`PENDING`]; then its parts are moved to their
//! names one by one, and the previous ones to other names. An interruption before that rename leaves the old state; after it,
//! [`complete`] does the rest at the next start.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: in the lane for files, or by a command that does nothing else"
)]

use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use kelson_platform::files::{private, sync_names};
use tempfile::TempDir;

use crate::error::BundleError;
use crate::key::Passphrase;
use crate::manifest::MANIFEST;
use crate::read::{Extracted, extract};

/// The parts of a data directory that a bundle may have: names of files and directories in it.
pub const PARTS: [&str; 6] = ["store", "pki", "etcd", "encryption-config.yaml", "network.json", "node-token"];
/// The extracted bundle whose parts are being moved to their names.
const PENDING: &str = "restore.pending";
/// The prefix of directories of extracted bundles that are not valid yet.
const STAGE: &str = "restore.stage.";
/// The file in [`PENDING`] with the suffix for replaced parts.
const SUFFIX: &str = "suffix";
/// The longest suffix in bytes.
const SUFFIX_BYTES_MAX: u64 = 64;

/// A bundle that was extracted next to its place. Dropping it deletes it.
pub struct Staged {
    dir: TempDir,
    extracted: Extracted,
}

impl Staged {
    /// Extracts a bundle below `dir` and checks that it has the entries in `needed`.
    ///
    /// # Errors
    /// The bundle is not valid, an entry is missing or has no place in a data directory, or files cannot be written.
    pub fn extract(
        from: impl Read,
        passphrase: Option<&Passphrase>,
        dir: &Path,
        needed: &[&str],
    ) -> Result<Self, BundleError> {
        let stage = tempfile::Builder::new().prefix(STAGE).tempdir_in(dir);
        let dir = stage.map_err(BundleError::io(dir.display().to_string()))?;
        let extracted = extract(from, passphrase, dir.path())?;
        if let Some(missing) = needed.iter().find(|needed| !extracted.entries.iter().any(|e| e.name == **needed)) {
            return Err(BundleError::Missing((*missing).to_owned()));
        }
        for entry in &extracted.entries {
            let part = entry.name.split('/').next().unwrap_or_default();
            if entry.name != MANIFEST && !PARTS.contains(&part) {
                return Err(BundleError::Name(entry.name.clone()));
            }
        }
        Ok(Self { dir, extracted })
    }

    /// Returns what the bundle contains.
    pub fn extracted(&self) -> &Extracted {
        &self.extracted
    }

    /// Returns the directory with its parts.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Moves the content to its place in a data directory, whose lock the caller has. Returns the paths at which replaced
    /// parts are kept.
    ///
    /// # Errors
    /// A file cannot be written or renamed.
    pub fn install(self, data_dir: &Path, now: Timestamp) -> Result<Vec<PathBuf>, BundleError> {
        let failed = || BundleError::io(format!("put the bundle in place in {}", data_dir.display()));
        let suffix = unused_suffix(data_dir, now);
        let open = private(File::options().write(true).create_new(true)).open(self.dir.path().join(SUFFIX));
        open.and_then(|mut file| file.write_all(suffix.as_bytes()).and_then(|()| file.sync_all())).map_err(failed())?;
        // The whole content is on disk before the first rename.
        sync_tree(self.dir.path()).map_err(failed())?;
        fs::rename(self.dir.keep(), data_dir.join(PENDING)).map_err(failed())?;
        sync_names(data_dir).map_err(failed())?;
        complete(data_dir)
    }

    /// Moves one part, which does not exist there, to its place in a data directory, whose lock the caller has.
    ///
    /// # Errors
    /// The part cannot be moved.
    pub(crate) fn install_part(self, part: &str, data_dir: &Path) -> Result<(), BundleError> {
        let failed = || BundleError::io(format!("put {part} of the bundle in place in {}", data_dir.display()));
        let from = self.dir.path().join(part);
        sync_tree(&from).map_err(failed())?;
        fs::rename(from, data_dir.join(part)).map_err(failed())?;
        sync_names(data_dir).map_err(failed())
    }
}

/// Returns a suffix that no replaced part has: two restores may be in one second.
fn unused_suffix(data_dir: &Path, now: Timestamp) -> String {
    let seconds = now.as_second();
    let is_used = |suffix: &str| PARTS.iter().any(|part| data_dir.join(format!("{part}.{suffix}")).exists());
    let numbered = (1..).map(|n: u32| format!("before-{seconds}-{n}"));
    let mut all = std::iter::once(format!("before-{seconds}")).chain(numbered);
    all.find(|suffix| !is_used(suffix)).unwrap_or_default()
}

/// Syncs the names in a directory and in those below it; the files were synced when they were written.
fn sync_tree(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    sync_names(dir)
}

/// Completes an installation that was interrupted, and deletes what an earlier interruption left. The caller has the
/// directory's lock. Returns the paths at which replaced parts are kept.
///
/// # Errors
/// A file cannot be renamed or deleted.
pub fn complete(data_dir: &Path) -> Result<Vec<PathBuf>, BundleError> {
    let failed = || BundleError::io(format!("complete the restore in {}", data_dir.display()));
    for entry in fs::read_dir(data_dir).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        if entry.file_name().to_string_lossy().starts_with(STAGE) {
            fs::remove_dir_all(entry.path()).map_err(failed())?;
        }
    }
    let pending = data_dir.join(PENDING);
    if !pending.exists() {
        return Ok(Vec::new());
    }
    let replaced = move_parts(&pending, data_dir).map_err(failed())?;
    sync_names(data_dir).map_err(failed())?;
    fs::remove_dir_all(&pending).map_err(failed())?;
    Ok(replaced)
}

fn move_parts(pending: &Path, data_dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut replaced = Vec::new();
    for part in PARTS {
        let (from, to) = (pending.join(part), data_dir.join(part));
        if !from.exists() {
            continue;
        }
        if to.exists() {
            let mut suffix = String::new();
            File::open(pending.join(SUFFIX))?.take(SUFFIX_BYTES_MAX).read_to_string(&mut suffix)?;
            let aside = data_dir.join(format!("{part}.{suffix}"));
            fs::rename(&to, &aside)?;
            replaced.push(aside);
        }
        fs::rename(&from, &to)?;
    }
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{FORMAT, Manifest};

    fn staged(data: &Path, word: &str) -> Staged {
        let dir = tempfile::Builder::new().prefix(STAGE).tempdir_in(data).unwrap();
        for part in ["store", "pki"] {
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
        assert!(staged(data, "old").install(data, Timestamp::UNIX_EPOCH).unwrap().is_empty());
        let kept = |_| staged(data, "old").install(data, Timestamp::UNIX_EPOCH).unwrap();
        assert_ne!(kept(1), kept(2), "in the same second");
        assert_eq!(content(data), ["old"; 3]);
        // Before the rename: the extracted bundle is deleted.
        let left = staged(data, "new").dir.keep();
        complete(data).unwrap();
        assert!(!left.exists());
        assert_eq!(content(data), ["old"; 3]);
        // After the rename, and after each step of the moves.
        for moves in 0..=6 {
            let word = format!("new-{moves}");
            let one = staged(data, &word);
            fs::write(one.path().join(SUFFIX), format!("before-move-{moves}")).unwrap();
            fs::rename(one.dir.keep(), data.join(PENDING)).unwrap();
            let mut done = 0;
            for part in ["store", "pki", "network.json"] {
                let aside = data.join(format!("{part}.before-move-{moves}"));
                for (from, to) in [(data.join(part), aside), (data.join(PENDING).join(part), data.join(part))] {
                    if done < moves {
                        fs::rename(from, to).unwrap();
                        done += 1;
                    }
                }
            }
            complete(data).unwrap();
            assert_eq!(content(data), [word.as_str(); 3]);
            assert!(!data.join(PENDING).exists() && data.join(format!("store.before-move-{moves}")).exists());
            assert!(complete(data).unwrap().is_empty(), "again does nothing");
        }
    }
}
