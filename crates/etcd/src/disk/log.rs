//! The log that is written.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::record::{self, Record};
use super::snapshot::SnapshotWriter;
use super::{DiskError, files, frame};

/// A log is worth a snapshot when it is larger than this and than the last snapshot.
const LOG_BYTES: u64 = 16 << 20;

/// The last log of a store.
#[derive(Debug)]
pub struct Log {
    dir: PathBuf,
    number: u64,
    file: File,
    bytes: u64,
    /// Without it, what the system has not written is lost with the power, and nothing else.
    syncs: bool,
    buffer: Vec<u8>,
}

impl Log {
    pub(super) fn open(dir: &Path, number: u64, bytes: u64, syncs: bool) -> Result<Self, DiskError> {
        let file = files::open_to_append(&files::log(dir, number))?;
        Ok(Self { dir: dir.to_path_buf(), number, file, bytes, syncs, buffer: Vec::new() })
    }

    /// Bytes of this log.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a snapshot would make the files smaller, where the last one has so many bytes.
    pub fn is_long(&self, snapshot_bytes: u64) -> bool {
        self.bytes > LOG_BYTES.max(snapshot_bytes)
    }

    /// Stores a commit, and syncs it.
    ///
    /// # Errors
    /// [`DiskError::Io`] says that nothing of it is there; after [`DiskError::Unsure`] nothing may be written.
    pub fn append(&mut self, records: &[Record]) -> Result<(), DiskError> {
        self.buffer.clear();
        let path = || files::log(&self.dir, self.number);
        if frame::append(&mut self.buffer, |into| record::encode(records, into)).is_err() {
            let source = std::io::Error::other("more than 4 GiB in one commit");
            return Err(DiskError::Io { what: "write", path: path(), source });
        }
        if let Err(source) = self.file.write_all(&self.buffer) {
            // What was written in part would be damage to the next start if more came behind it.
            self.file.set_len(self.bytes).map_err(|again| DiskError::Unsure {
                what: "cut a commit off that failed from",
                path: path(),
                source: again,
            })?;
            return Err(DiskError::Io { what: "write", path: path(), source });
        }
        if self.syncs {
            self.file.sync_data().map_err(|source| DiskError::Unsure { what: "sync", path: path(), source })?;
        }
        self.bytes += self.buffer.len() as u64;
        if self.buffer.capacity() > 1 << 20 {
            self.buffer = Vec::new();
        }
        Ok(())
    }

    /// Begins a new log, and a snapshot that will stand for all before it.
    ///
    /// # Errors
    /// Nothing changed then.
    pub fn rotate(&mut self) -> Result<SnapshotWriter, DiskError> {
        let number = self.number + 1;
        let snapshot = SnapshotWriter::create(&self.dir, number, self.syncs)?;
        let next = Self::open(&self.dir, number, 0, self.syncs)?;
        if self.syncs {
            files::sync_names(&self.dir)?;
        }
        *self = next;
        Ok(snapshot)
    }
}
