//! What the store asks of an engine: keep numbered rows through a crash. An engine knows nothing of
//! revisions, records or watches; `format` says what the bytes mean.

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

/// Stands for the file of an engine where it is not known.
const UNNAMED: &str = "the store";

/// One change of one name in the engine's table of bytes.
#[derive(Clone, Debug)]
pub enum Op {
    /// Stores the row under a number, new or not.
    Put {
        /// The row's number.
        id: u64,
        /// The first part of the row.
        head: Vec<u8>,
        /// The rest of it: an object's bytes need not be copied to put a header before them.
        body: Bytes,
    },
    /// Removes the row with a number, if it is there.
    Remove {
        /// The row's number.
        id: u64,
    },
    /// Stores a named value: few, small, never removed.
    Mark {
        /// Where the value is kept; see `format` for what names say.
        name: String,
        /// What is kept; the engine does not look into it.
        value: Vec<u8>,
    },
}

/// One stored thing.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// A row, head and body in one.
    Record {
        /// The row's number.
        id: u64,
        /// What is kept under it.
        value: &'a [u8],
    },
    /// A named value.
    Mark {
        /// Where the value is kept.
        name: &'a str,
        /// What is kept there.
        value: &'a [u8],
    },
}

/// Takes one stored entry while loading.
pub type Sink<'a> = dyn FnMut(Entry<'_>) -> Result<(), EngineError> + 'a;

/// Numbered rows and named values that survive `kill -9` and power cuts. All calls come from one thread at a time.
pub trait Engine: Send {
    /// Hands everything stored to `sink`: the marks first, then the rows.
    ///
    /// # Errors
    /// What the disk or the file's contents say; errors of `sink` are passed on.
    fn load(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError>;

    /// Appends a batch, all of it or nothing. When this returns, the kernel has the bytes (they survive the end of the
    /// process); with `sync` the disk has them too, and all batches before.
    ///
    /// # Errors
    /// [`EngineError::Sync`]: the disk did not confirm the batch; whether it is there will be known when the engine is
    /// opened anew, and until then it must not be written to. After any other error the batch has no effect, or will
    /// have none before the next batch that succeeds, and the engine is usable again as soon as its cause is gone.
    fn append(&mut self, batch: &[Op], sync: bool) -> Result<(), EngineError>;

    /// Makes everything appended survive a power cut.
    ///
    /// # Errors
    /// As [`Engine::append`].
    fn sync(&mut self) -> Result<(), EngineError>;

    /// Does a bounded piece of housekeeping off the path of writes (giving free space back) and says whether there is
    /// more to do.
    ///
    /// # Errors
    /// As [`Engine::append`].
    fn maintain(&mut self) -> Result<bool, EngineError> {
        Ok(false)
    }

    /// Removes what deleted and replaced rows left behind in the files.
    ///
    /// # Errors
    /// As [`Engine::append`].
    fn erase(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Has rows that are deleted or replaced overwritten (`true`), those of the past as well, or left as they are.
    ///
    /// # Errors
    /// As [`Engine::append`].
    fn set_erasing(&mut self, _erases: bool) -> Result<(), EngineError> {
        Ok(())
    }

    /// Keeps some room on the disk for [`Engine::make_room`]. `false`: there is none to keep.
    fn keep_room(&mut self) -> bool {
        false
    }

    /// Gives up what is kept for a full disk, so that deletions can be stored. `false`: there is nothing to give up.
    fn make_room(&mut self) -> bool {
        false
    }

    /// The file that everything is in.
    fn path(&self) -> PathBuf {
        PathBuf::from(UNNAMED)
    }

    /// Whether calls may block on a disk: then the committer gets a thread of its own, else it runs in its callers.
    fn blocks(&self) -> bool;
}

/// Why the engine could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Another process has the directory open.
    #[error("the data directory {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The files are not what this program writes, or are damaged.
    #[error("{} is damaged or not a Kelson store: {reason}", .path.display())]
    Corrupt {
        /// The directory or file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// There is no store where there must be one.
    #[error(
        "{} is missing, but this directory belonged to a cluster. Restore a snapshot (kelson snapshot restore) or move the store back; for a new cluster, use an empty data directory",
        .0.display()
    )]
    Missing(PathBuf),
    /// A record is encrypted and cannot be decrypted, or is not encrypted and has to be.
    #[error("{key} cannot be decrypted: {reason}")]
    Sealed {
        /// Which record.
        key: String,
        /// What is missing or wrong.
        reason: String,
    },
    /// The files were written by another version in a format that this one does not read.
    #[error("the store has format {found}, expected format {expected}")]
    Format {
        /// Format of the files.
        found: u64,
        /// Format of this program.
        expected: u64,
    },
    /// The disk failed or is full.
    #[error("{context}: {source}")]
    Io {
        /// What was being done.
        context: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The disk did not confirm what was handed to it. The kernel may have dropped those bytes and yet answer the next
    /// sync with success, so trying again proves nothing: only what a new opening reads is true.
    #[error("{context}: syncing the write failed: {reason}")]
    Sync {
        /// What was being done.
        context: &'static str,
        /// What the system said.
        reason: String,
    },
    /// The engine's library failed in another way.
    #[error("{context}: {reason}")]
    Other {
        /// What was being done.
        context: &'static str,
        /// What the library said.
        reason: String,
    },
}

impl EngineError {
    /// The same of a store that could not be opened, with its file where none is named.
    pub(crate) fn of(self, file: &Path) -> Self {
        match self {
            Self::Corrupt { path, reason } if path == Path::new(UNNAMED) => {
                Self::Corrupt { path: file.to_path_buf(), reason }
            }
            // SQLite's general fault: what is there is not what is asked for.
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

    /// Whether the disk is full, so that room helps.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        matches!(self, Self::Io { source, .. } if matches!(
            source.kind(),
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
        ))
    }
}
