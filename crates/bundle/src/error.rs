//! Errors of this crate. No message contains a passphrase or a key.

use std::io;
use std::path::PathBuf;

/// A bundle that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A file or stream could not be read or written.
    #[error("{context}: {source}")]
    Io {
        /// The thing that was read or written.
        context: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The bundle is sealed and no passphrase was given.
    #[error("the bundle is sealed; its passphrase is required")]
    Sealed,
    /// The passphrase does not open the bundle.
    #[error("the passphrase is wrong, or the header of the bundle is damaged")]
    WrongPassphrase,
    /// The passphrase is empty or too long.
    #[error("a passphrase must have 1 to {max} bytes, got {found}")]
    Passphrase {
        /// The number of bytes found.
        found: usize,
        /// The largest number of bytes.
        max: usize,
    },
    /// The file is not a bundle.
    #[error("not a bundle: {0}")]
    Malformed(String),
    /// The file was a bundle and its content has changed.
    #[error("the bundle is damaged: {0}")]
    Damaged(String),
    /// The file ends before the bundle does.
    #[error("the bundle is truncated")]
    Truncated,
    /// A part is larger than the limit.
    #[error("{what} is {found}, the limit is {limit}")]
    Limit {
        /// The part, with its unit.
        what: String,
        /// The value found.
        found: u64,
        /// The largest value.
        limit: u64,
    },
    /// A later release wrote the bundle.
    #[error("the bundle has format {found}, this release reads formats up to {known}; use a newer kelson")]
    Format {
        /// The format of the bundle.
        found: u32,
        /// The newest format that is read.
        known: u32,
    },
    /// An entry has a name that could leave the directory or that some system cannot store.
    #[error("the name {0:?} of an entry is invalid")]
    Name(String),
    /// An entry without which the bundle is of no use is missing.
    #[error("the bundle has no {0}")]
    Missing(String),
    /// The data directory has objects or keys of another cluster.
    #[error("{} belongs to another cluster; use an empty data directory", .0.display())]
    OtherCluster(PathBuf),
    /// The system has no random numbers, or a cipher failed.
    #[error("cryptography failed: {0}")]
    Crypto(&'static str),
}

impl BundleError {
    /// Adds what was read or written to an I/O error; an error of this crate that passed through a stream is returned as it was.
    pub(crate) fn io(context: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| match source.downcast::<Self>() {
            Ok(own) => own,
            Err(source) => Self::Io { context: context.into(), source },
        }
    }
}

impl From<BundleError> for io::Error {
    fn from(error: BundleError) -> Self {
        match error {
            BundleError::Io { source, .. } => source,
            other => Self::other(other),
        }
    }
}
