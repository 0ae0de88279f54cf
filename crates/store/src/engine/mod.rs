//! What the store asks of an engine: keep numbered rows through a crash. An engine knows nothing of
//! revisions, records or watches; `format` says what the bytes mean.

use std::path::PathBuf;

use bytes::Bytes;

pub(crate) mod format;
mod memory;
mod sqlite;

pub use memory::MemoryEngine;
pub use sqlite::SqliteEngine;

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
    /// A record is encrypted, and nobody here can decrypt it.
    #[error("{key} cannot be decrypted: {reason}")]
    Sealed {
        /// Which record.
        key: String,
        /// What is missing or wrong.
        reason: String,
    },
    /// The files were written by another version in a format that this one does not read.
    #[error("the store has format {found}, this version reads format {expected}")]
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
    #[error("{context}: the disk did not confirm the write: {reason}")]
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
