//! The reservations of ranges on the host, in files of `/run/kelson` under one lock.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of `aside`; as a CNI plugin a process of its own")]

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use kelson_ranges::{Ranges, record};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::config::network_id;
use crate::error::NetError;

/// The reservation of a node on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Reservation {
    /// The data directory of the server that uses the range.
    pub(super) data_dir: PathBuf,
    /// The network namespace: other namespaces have separate addresses.
    pub(super) netns: u64,
    #[serde(flatten)]
    pub(super) ranges: Ranges,
}

/// The directory of reservations of this host, one file per data directory. A reboot empties it, as it does the host's
/// network.
pub const RUN_DIR: &str = "/run/kelson";

/// The maximum number of reservations read.
pub(super) const RECORDS_MAX: usize = 4096;

/// The reservations, locked until dropped. The directory itself is the lock, so that no lock file is left behind.
pub(super) struct Book {
    pub(super) dir: File,
}

impl Book {
    pub(super) fn open() -> Result<Self, NetError> {
        let failed = |what: &str| NetError::io(format!("{what} {RUN_DIR}"));
        loop {
            std::fs::create_dir_all(RUN_DIR).map_err(failed("create"))?;
            let dir = match File::open(RUN_DIR) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.map_err(failed("open"))?,
            };
            rustix::fs::flock(&dir, FlockOperation::LockExclusive).map_err(|e| failed("lock")(e.into()))?;
            // The previous holder of the lock may have removed the directory: then this lock is on a deleted one.
            let held = dir.metadata().map_err(failed("read"))?.ino();
            if std::fs::metadata(RUN_DIR).is_ok_and(|m| m.ino() == held) {
                return Ok(Self { dir });
            }
        }
    }

    pub(super) fn path(data_dir: &Path) -> PathBuf {
        Path::new(RUN_DIR).join(format!("{}.json", network_id(data_dir)))
    }

    /// Returns the reservations of other data directories in this network namespace. One whose directory does not exist
    /// any more is dropped.
    pub(super) fn others(&self, data_dir: &Path) -> Result<Vec<Reservation>, NetError> {
        let (own, netns) = (Self::path(data_dir), netns_id()?);
        let entries = std::fs::read_dir(RUN_DIR).map_err(NetError::io(RUN_DIR))?;
        let files = entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "json"));
        let mut found = Vec::new();
        for path in files.filter(|p| *p != own).take(RECORDS_MAX) {
            match record::read::<Reservation>(&path) {
                Ok(Some(r)) if !r.data_dir.exists() => drop(std::fs::remove_file(&path)),
                Ok(Some(r)) if r.netns == netns => found.push(r),
                Ok(_) => {}
                Err(e) => tracing::warn!(error = %e, "address reservation cannot be decoded; ignoring it"),
            }
        }
        Ok(found)
    }

    pub(super) fn write(&self, data_dir: &Path, ranges: Ranges) -> Result<(), NetError> {
        let claim = Reservation { data_dir: data_dir.to_owned(), netns: netns_id()?, ranges };
        Ok(record::write(&Self::path(data_dir), &claim, false)?)
    }

    pub(super) fn remove(self, data_dir: &Path) -> Result<(), NetError> {
        let path = Self::path(data_dir);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(NetError::io(format!("remove {}", path.display()))(e));
            }
            _ => {}
        }
        // Removed with its last reservation; "not empty" is the usual error.
        let _ = std::fs::remove_dir(RUN_DIR);
        drop(self.dir);
        Ok(())
    }
}

pub(super) fn netns_id() -> Result<u64, NetError> {
    const SELF: &str = "/proc/self/ns/net";
    Ok(std::fs::metadata(SELF).map_err(NetError::io(SELF))?.ino())
}
