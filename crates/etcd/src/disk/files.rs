//! File names and directories of a store.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use kelson_platform::files;

use super::DiskError;

/// The directory of a store below the data directory.
const FOLDER: &str = "kelson-etcd";

pub(super) fn snapshot(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("snapshot-{number:016}"))
}

pub(super) fn log(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("log-{number:016}"))
}

pub(super) fn fault(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> DiskError {
    move |source| DiskError::Io { what, path: path.to_path_buf(), source }
}

/// Creates the directory of a store below a data directory.
pub(super) fn create(data_dir: &Path) -> Result<PathBuf, DiskError> {
    if data_dir.join("member").join("snap").join("db").exists() {
        let reason = "it holds the data of another etcd, whose files are not read here; copy the keys through its API";
        return Err(DiskError::Foreign { path: data_dir.to_path_buf(), reason });
    }
    let dir = data_dir.join(FOLDER);
    files::make_private_dir(&dir).map_err(fault("make the directory", &dir))?;
    Ok(dir)
}

/// Opens a file for appending, with access for its owner only.
pub(super) fn open_to_append(path: &Path) -> Result<File, DiskError> {
    let open = files::private(OpenOptions::new().append(true).create(true)).open(path);
    open.map_err(fault("open", path))
}

/// Syncs a directory, so that new file names survive a power failure.
pub(super) fn sync_names(dir: &Path) -> Result<(), DiskError> {
    files::sync_names(dir).map_err(fault("sync", dir))
}

/// Returns the numbers of the snapshots and logs in a directory, in order. Incomplete files are removed.
pub(super) fn list(dir: &Path) -> Result<(Vec<u64>, Vec<u64>), DiskError> {
    let (mut snapshots, mut logs) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(dir).map_err(fault("read", dir))? {
        let entry = entry.map_err(fault("read", dir))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let number = |prefix: &str| name.strip_prefix(prefix).and_then(|digits| digits.parse().ok());
        if let Some(number) = number("snapshot-") {
            snapshots.push(number);
        } else if let Some(number) = number("log-") {
            logs.push(number);
        } else if name.ends_with(".part") {
            fs::remove_file(entry.path()).map_err(fault("remove", &entry.path()))?;
        }
    }
    snapshots.sort_unstable();
    logs.sort_unstable();
    Ok((snapshots, logs))
}

/// Removes the files that a complete snapshot replaces. Files that cannot be removed are removed after the next
/// snapshot.
pub(super) fn remove_before(dir: &Path, number: u64) -> Result<(), DiskError> {
    let (snapshots, logs) = list(dir)?;
    let old = snapshots.into_iter().filter(|n| *n < number).map(|n| snapshot(dir, n));
    let old = old.chain(logs.into_iter().filter(|n| *n < number).map(|n| log(dir, n)));
    for path in old {
        fs::remove_file(&path).map_err(fault("remove", &path))?;
    }
    Ok(())
}
