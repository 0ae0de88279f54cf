//! The state on the disk: a log of what was committed, and now and then a copy of everything, after which older logs go.
//!
//! A directory has files `snapshot-N` and `log-N`. Snapshot N with the logs from N on is the whole state; a snapshot gets its
//! name when it is complete and synced. Each file is a row of frames with checksums, each frame a row of records; a commit
//! is one frame, so it is there whole or not at all. A torn frame at the end of the last log is a commit that nobody was
//! told of, and goes, unless the file `position` says that it was acknowledged; damage anywhere else stops the start.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, and in the lane for the disk")]

mod files;
mod frame;
mod load;
mod log;
mod position;
mod record;
mod snapshot;

use std::path::PathBuf;

use kelson_tasks::Lane;

pub use load::{Loaded, load};
pub use log::Log;
pub use record::{Identity, Record};
pub use snapshot::SnapshotWriter;

/// Writes and syncs of logs and snapshots. More than one at a time come from several stores in one process.
pub static DISK: Lane = Lane::new("etcd-disk", 8);

/// Why the disk did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A file could not be read or written. Nothing of the commit is there.
    #[error("{what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A sync failed, or a commit that failed could not be taken back: whether it is there, only the next start can tell.
    #[error("{what} {path}: {source}; rejecting writes until a restart")]
    Unsure {
        /// What was tried.
        what: &'static str,
        /// The file that it happened to.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// What is read is not what was written.
    #[error("{path} is damaged at byte {at}: {reason}")]
    Damaged {
        /// The file that it happened to.
        path: PathBuf,
        /// Where the frame begins.
        at: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// The directory belongs to something else.
    #[error("{path}: {reason}")]
    Foreign {
        /// The directory or file.
        path: PathBuf,
        /// What it is.
        reason: &'static str,
    },
}
