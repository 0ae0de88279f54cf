//! The log to which commits are appended.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::position::{Position, PositionFile};
use super::record::{self, Record};
use super::snapshot::SnapshotWriter;
use super::{DiskError, files, frame};

/// A snapshot is written when the log is larger than this and than the last snapshot.
const LOG_BYTES: u64 = 16 << 20;

/// The last log of a store.
#[derive(Debug)]
pub struct Log {
    dir: PathBuf,
    number: u64,
    file: File,
    bytes: u64,
    /// The number of its records, which its closing record contains.
    records: u64,
    /// Whether commits are synced. If not, a power failure loses what the kernel has not written.
    syncs: bool,
    buffer: Vec<u8>,
    /// `None` if the file could not be created.
    position: Option<PositionFile>,
    /// The duration of the last sync.
    sync_took: Option<Duration>,
}

impl Log {
    pub(super) fn open(dir: &Path, number: u64, (bytes, records): (u64, u64), syncs: bool) -> Result<Self, DiskError> {
        let path = files::log(dir, number);
        let file = files::open_to_append(&path)?;
        if syncs {
            // Syncs data that a killed process wrote without a sync.
            file.sync_data().map_err(files::fault("sync", &path))?;
        }
        let position = PositionFile::open(dir, number, syncs)
            .inspect_err(|error| tracing::warn!(%error, "cannot record the position of the last commit; damage of it will not be detected"))
            .ok();
        let (dir, buffer) = (dir.to_path_buf(), Vec::new());
        let mut log = Self { dir, number, file, bytes, records, syncs, buffer, position, sync_took: None };
        log.note();
        Ok(log)
    }

    fn note(&mut self) {
        let at = Position { log: self.number, bytes: self.bytes };
        self.position.iter_mut().for_each(|position| position.note(at));
    }

    /// Returns the duration of the last commit's sync; `None` if it was not synced.
    pub fn sync_took(&self) -> Option<Duration> {
        self.sync_took
    }

    /// Returns the size of this log in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reports whether a snapshot would reduce the size of the files, given the size of the last one.
    pub fn is_long(&self, snapshot_bytes: u64) -> bool {
        self.bytes > LOG_BYTES.max(snapshot_bytes)
    }

    /// Appends a commit and syncs it.
    ///
    /// # Errors
    /// [`DiskError::Io`] means that nothing of it was stored; after [`DiskError::Unsure`] nothing more may be written.
    pub fn append(&mut self, records: &[Record]) -> Result<(), DiskError> {
        self.buffer.clear();
        self.sync_took = None;
        let path = || files::log(&self.dir, self.number);
        if frame::append(&mut self.buffer, |into| record::encode(records, into)).is_err() {
            let source = std::io::Error::other("commit is larger than 4 GiB");
            return Err(DiskError::Io { what: "write", path: path(), source });
        }
        if let Err(source) = self.file.write_all(&self.buffer) {
            // A partial frame followed by another one would be damage at the next start.
            self.file.set_len(self.bytes).map_err(|again| DiskError::Unsure {
                what: "truncate a failed commit from",
                path: path(),
                source: again,
            })?;
            return Err(DiskError::Io { what: "write", path: path(), source });
        }
        if self.syncs {
            let begun = Instant::now();
            self.file.sync_data().map_err(|source| DiskError::Unsure { what: "sync", path: path(), source })?;
            self.sync_took = Some(begun.elapsed());
        }
        self.bytes += self.buffer.len() as u64;
        self.records += records.len() as u64;
        self.note();
        if self.buffer.capacity() > 1 << 20 {
            self.buffer = Vec::new();
        }
        Ok(())
    }

    /// Begins a new log, and a snapshot that will replace everything before it.
    ///
    /// # Errors
    /// [`DiskError::Io`]: nothing changed. [`DiskError::Unsure`]: the new log exists, and the old one must not be
    /// continued before it, so nothing more may be written.
    pub fn rotate(&mut self) -> Result<SnapshotWriter, DiskError> {
        self.rotate_with(files::sync_names)
    }

    fn rotate_with(&mut self, sync_names: fn(&Path) -> Result<(), DiskError>) -> Result<SnapshotWriter, DiskError> {
        let number = self.number + 1;
        let path = files::log(&self.dir, number);
        // This record distinguishes a complete log from one that was truncated between two commits.
        self.append(&[Record::end(self.records)])?;
        let snapshot = SnapshotWriter::create(&self.dir, number, self.syncs)?;
        let made = files::open_to_append(&path)
            .and_then(|file| if self.syncs { sync_names(&self.dir).map(|()| file) } else { Ok(file) });
        match made {
            Ok(file) => {
                (self.number, self.file) = (number, file);
                (self.bytes, self.records) = (0, 0);
                self.note();
                Ok(snapshot)
            }
            Err(error) => {
                snapshot.discard();
                match std::fs::remove_file(&path) {
                    Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                        Err(DiskError::Unsure { what: "remove an incomplete log", path, source })
                    }
                    _ => Err(error),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Identity, load};
    use super::*;

    #[test]
    fn a_rotation_that_fails_leaves_the_log_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let loaded = load(dir.path(), Identity::new(1, 2), true).unwrap();
        let mut log = loaded.log;
        let fails = |dir: &Path| Err(files::fault("sync", dir)(std::io::Error::other("no space")));
        assert!(matches!(log.rotate_with(fails), Err(DiskError::Io { .. })));
        log.append(&[Record::revision(7)]).unwrap();
        // The last commit is torn: it ends the last log, so the start continues without it.
        log.append(&[Record::revision(8)]).unwrap();
        drop(log);
        let file =
            std::fs::OpenOptions::new().write(true).open(files::log(&files::create(dir.path()).unwrap(), 1)).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        // It was written while the process was killed, so that no client got an answer.
        std::fs::remove_file(dir.path().join("kelson-etcd").join("position")).unwrap();
        let loaded = load(dir.path(), Identity::new(1, 2), true).unwrap();
        assert_eq!(loaded.state.revision(), 7);
        assert!(loaded.log.number == 1);
    }
}
