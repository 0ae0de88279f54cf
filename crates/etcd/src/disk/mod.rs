//! The state on the disk: a log of commits, and from time to time a snapshot of everything, after which older logs are
//! removed.
//!
//! A directory has files `snapshot-N` and `log-N`. Snapshot N with the logs from N on is the whole state; a snapshot
//! gets its name when it is complete and synced. Each file is a sequence of frames with checksums, each frame a
//! sequence of records; a commit is one frame, so it is stored completely or not at all. A torn frame at the end of the
//! last log is a commit that was not acknowledged, and is dropped, unless the file `position` says that it was
//! acknowledged; damage anywhere else stops the start.
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

/// Writes and syncs of logs and snapshots. Several at the same time come from several stores in one process.
pub static DISK: Lane = Lane::new("etcd-disk", 8);

/// An error of the disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A file could not be read or written. Nothing of the commit is stored.
    #[error("{what} {path}: {source}")]
    Io {
        /// The operation that failed, for the message.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A sync failed, or a failed commit could not be removed: only the next start can find out whether it is stored.
    #[error("{what} {path}: {source}; rejecting writes until a restart")]
    Unsure {
        /// The operation that failed, for the message.
        what: &'static str,
        /// The file of the operation.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The data that was read is not what was written.
    #[error("{path} is damaged at byte {at}: {reason}")]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// The position of the frame.
        at: u64,
        /// The kind of damage.
        reason: &'static str,
    },
    /// The directory belongs to another program.
    #[error("{path}: {reason}")]
    Foreign {
        /// The directory or file.
        path: PathBuf,
        /// The damage that was found.
        reason: &'static str,
    },
}
