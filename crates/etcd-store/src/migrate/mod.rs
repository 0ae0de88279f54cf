//! Moves of a server's data between its embedded store and its etcd member, offline: no server runs on either. Objects keep
//! their revisions, so resourceVersions and watches continue.
//!
//! A move writes everything beside the present data, and then takes effect by one rename, which [`place::settle`] completes.
//! The data of before is kept under another name.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: in the lane for files, or by a command that does nothing else"
)]

mod from_etcd;
mod into_etcd;
mod offline;
pub mod place;
mod reset;
mod wal;

use std::io;
use std::path::PathBuf;

use kelson_store::StoreError;
use kelson_tasks::LaneError;

pub use from_etcd::into_embedded;
pub use into_etcd::{IntoEtcd, before_first_member, into_etcd};
pub use offline::{Members, OfflineMember};
pub use reset::reset;

use crate::open::EtcdError;

/// A completed move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The revision at which the data continues.
    pub revision: u64,
    /// The number of objects; after a reset, of all keys.
    pub objects: usize,
    /// The directory in which the data of before is kept.
    pub aside: PathBuf,
}

/// Why data was not moved. The data of before is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// There is nothing to move.
    #[error("{} does not exist; there is no data to move", .0.display())]
    Absent(PathBuf),
    /// Both an embedded store and a member with data exist.
    #[error("{} and {} both have data; rename the directory that is not used any more", .store.display(), .member.display())]
    Both {
        /// The directory of the embedded store.
        store: PathBuf,
        /// The directory of the member.
        member: PathBuf,
    },
    /// A store cannot be read or written.
    #[error("{}: {source}", .path.display())]
    Store {
        /// The directory of the store.
        path: PathBuf,
        /// The store's error.
        source: StoreError,
    },
    /// Etcd cannot be read.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The etcd process of a move failed.
    #[error("etcd: {why}{}{log}", if log.is_empty() { "" } else { "; its log ends with: " })]
    Member {
        /// The error of the system.
        why: String,
        /// The end of its log.
        log: String,
    },
    /// Other members have the same data.
    #[error("the etcd cluster has {0} members; remove the others first (kelson member remove)")]
    Members(usize),
    /// The member has not caught up with the cluster.
    #[error("the member was still joining and may lack data; use a server that was a full member of the cluster")]
    Learner,
    /// The disk failed or is full.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The work was broken off.
    #[error("{0}")]
    Lane(#[from] LaneError),
}

fn io_at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> MoveError {
    let path = path.into();
    move |source| MoveError::Io { path, source }
}

fn store_at(path: impl Into<PathBuf>) -> impl FnOnce(StoreError) -> MoveError {
    let path = path.into();
    move |source| MoveError::Store { path, source }
}
