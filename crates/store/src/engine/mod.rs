//! The interface of an engine, which keeps numbered rows through a crash. An engine has no notion of revisions, records or watches;
//! `format` defines the meaning of the bytes.

use std::path::{Path, PathBuf};

use bytes::Bytes;

mod ballast;
pub(crate) mod format;
mod memory;
mod position;
mod sqlite;
mod wal;

pub use memory::MemoryEngine;
pub use sqlite::SqliteEngine;

/// The path in errors of an engine whose file is not known.
const UNNAMED: &str = "the store";

/// One operation on the rows and named values of an engine.
#[derive(Clone, Debug)]
pub enum Op {
    /// Stores a row under its number and replaces an existing one.
    Put {
        /// The row's number.
        id: u64,
        /// The first part of the row.
        head: Vec<u8>,
        /// The rest of the row. It is separate so that an object's bytes need not be copied to put a header before them.
        body: Bytes,
    },
    /// Removes the row with this number, if it exists.
    Remove {
        /// The row's number.
        id: u64,
    },
    /// Stores a named value. There are few of them; they are small and never removed.
    Mark {
        /// The name of the value; `format` defines the names.
        name: String,
        /// The value, which the engine does not interpret.
        value: Vec<u8>,
    },
}

/// One stored entry.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// A row: head and body concatenated.
    Record {
        /// The row's number.
        id: u64,
        /// The content of the row.
        value: &'a [u8],
    },
    /// A named value.
    Mark {
        /// The name of the value.
        name: &'a str,
        /// The content of the value.
        value: &'a [u8],
    },
}

/// Receives one stored entry while the store is loaded.
pub type Sink<'a> = dyn FnMut(Entry<'_>) -> Result<(), EngineError> + 'a;

/// Numbered rows and named values that survive `kill -9` and power cuts. All calls come from one thread at a time.
pub trait Engine: Send {
    /// Passes every stored entry to `sink`: the marks first, then the rows.
    ///
    /// # Errors
    /// Returns an error if the disk fails or the file is damaged, and passes on errors of `sink`.
    fn load(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError>;

    /// Appends a batch atomically. When this returns, the kernel has the bytes, so they survive the end of the process. With `sync` the
    /// disk has them too, and all earlier batches.
    ///
    /// # Errors
    /// Returns [`EngineError::Sync`] if the disk did not confirm the batch. Whether the batch is stored is known only when the engine is
    /// opened again, and it must not be written to before. After any other error the batch has no effect, or has none as soon as the
    /// next batch succeeds, and the engine is usable once the cause is gone.
    fn append(&mut self, batch: &[Op], sync: bool) -> Result<(), EngineError>;

    /// Makes everything that was appended survive a power cut.
    ///
    /// # Errors
    /// See [`Engine::append`].
    fn sync(&mut self) -> Result<(), EngineError>;

    /// Does a bounded step of housekeeping, which returns free space to the file system. Returns whether there is more to do.
    ///
    /// # Errors
    /// See [`Engine::append`].
    fn maintain(&mut self) -> Result<bool, EngineError> {
        Ok(false)
    }

    /// Erases the remains of deleted and replaced rows from the files.
    ///
    /// # Errors
    /// See [`Engine::append`].
    fn erase(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Sets whether deleted and replaced rows are overwritten in the files. If `true`, the remains of earlier ones are erased as well.
    ///
    /// # Errors
    /// See [`Engine::append`].
    fn set_erasing(&mut self, _erases: bool) -> Result<(), EngineError> {
        Ok(())
    }

    /// Reserves disk space for [`Engine::make_room`]. Returns `false` if there is no reserve.
    fn keep_room(&mut self) -> bool {
        false
    }

    /// Releases the reserved disk space, so that deletions can be stored. Returns `false` if there was none.
    fn make_room(&mut self) -> bool {
        false
    }

    /// The path of the engine's file.
    fn path(&self) -> PathBuf {
        PathBuf::from(UNNAMED)
    }

    /// Whether calls may block on a disk. If so, the committer runs on a dedicated thread; otherwise it runs in its callers.
    fn blocks(&self) -> bool;
}

/// Why an operation of an engine failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Another process has the directory open.
    #[error("the data directory {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The files are damaged, or another program wrote them.
    #[error("{} is damaged or not a Kelson store: {reason}", .path.display())]
    Corrupt {
        /// The directory or file.
        path: PathBuf,
        /// A description of the damage.
        reason: String,
    },
    /// There is no store in a directory that must have one.
    #[error(
        "{} is missing, but this directory belonged to a cluster. Restore a snapshot (kelson snapshot restore) or move the store back; for a new cluster, use an empty data directory",
        .0.display()
    )]
    Missing(PathBuf),
    /// A record is encrypted and cannot be decrypted, or it is unencrypted and must not be.
    #[error("{key} cannot be decrypted: {reason}")]
    Sealed {
        /// The key of the record.
        key: String,
        /// The reason why it cannot be used.
        reason: String,
    },
    /// The files were written by another version in a format that this one does not read.
    #[error(
        "the store has format {found}, and this version reads formats {oldest} to {expected}: start the version that wrote it, or \
         restore a snapshot of this one"
    )]
    Format {
        /// The format of the files.
        found: u64,
        /// The oldest format that this version reads.
        oldest: u64,
        /// The format that this version writes, and the newest that it reads.
        expected: u64,
    },
    /// The disk failed or is full.
    #[error("{context}: {source}")]
    Io {
        /// The operation that failed.
        context: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The disk did not confirm what was handed to it. The kernel may have dropped those bytes and yet answer the next
    /// sync with success, so trying again proves nothing: only what a new opening reads is true.
    #[error("{context}: syncing the write failed: {reason}")]
    Sync {
        /// The operation that failed.
        context: &'static str,
        /// The operating system's error.
        reason: String,
    },
    /// The engine's library reported another error.
    #[error("{context}: {reason}")]
    Other {
        /// The operation that failed.
        context: &'static str,
        /// The library's error.
        reason: String,
    },
}

impl EngineError {
    /// Adds the path of the store's file to an error of opening that has none.
    pub(crate) fn of(self, file: &Path) -> Self {
        match self {
            Self::Corrupt { path, reason } if path == Path::new(UNNAMED) => {
                Self::Corrupt { path: file.to_path_buf(), reason }
            }
            // SQLite's generic error means that the file does not have the expected content.
            Self::Other { context, reason } => {
                Self::Corrupt { path: file.to_path_buf(), reason: format!("{context}: {reason}") }
            }
            Self::Io { context, source } => {
                let named = format!("{}: {source}", file.display());
                Self::Io { context, source: std::io::Error::new(source.kind(), named) }
            }
            other => other,
        }
    }

    /// Whether the disk is full, so that freeing space helps.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        matches!(self, Self::Io { source, .. } if matches!(
            source.kind(),
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
        ))
    }
}
