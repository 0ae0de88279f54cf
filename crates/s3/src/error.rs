//! Errors of requests to S3.

use std::io;
use std::path::PathBuf;

use kelson_tasks::LaneError;

/// Why a file was not stored, read, listed or deleted.
#[derive(Debug, thiserror::Error)]
pub enum S3Error {
    /// An option is not valid.
    #[error("{0}")]
    Options(String),
    /// The server cannot be reached, or does not answer in time.
    #[error("{0}")]
    Unreachable(String),
    /// The server rejected the request.
    #[error("the server answered {status}{}{code}{}{message}", if code.is_empty() { "" } else { " " }, if message.is_empty() { "" } else { ": " })]
    Rejected {
        /// The status of HTTP.
        status: u16,
        /// The code of S3, such as `NoSuchBucket`; empty for none.
        code: String,
        /// The message of the server; empty for none.
        message: String,
    },
    /// The answer of the server cannot be understood.
    #[error("the server's answer is not valid: {0}")]
    Answer(String),
    /// The file or the list is too large.
    #[error("more than {0}")]
    TooMuch(String),
    /// A file of this machine cannot be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The work was broken off.
    #[error("{0}")]
    Lane(#[from] LaneError),
}

pub(crate) fn file_at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> S3Error {
    let path = path.into();
    move |source| S3Error::File { path, source }
}
