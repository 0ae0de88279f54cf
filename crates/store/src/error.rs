//! Why a write was refused or a read could not be answered. Mapping to an API `Status` is the API server's part.

use std::sync::Arc;

use crate::at_rest::SealError;
use crate::engine::EngineError;
use crate::meta::Uid;
use crate::record::Record;

/// The store's answer when it cannot do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The key is taken (API: 409 AlreadyExists). No retry helps while it is.
    #[error("the object already exists at revision {}", .current.revision())]
    AlreadyExists {
        /// The record that holds the key.
        current: Arc<Record>,
    },
    /// There is nothing under the key (API: 404 NotFound).
    #[error("the object does not exist")]
    NotFound,
    /// The record is at another revision than the writer expected (API: 409 Conflict). Read again and retry.
    #[error("the object is at revision {}, not {expected}", .current.revision())]
    Conflict {
        /// The record as it is now.
        current: Arc<Record>,
        /// The revision the writer asked for.
        expected: u64,
    },
    /// The record is another incarnation of the key than the writer expected (API: 409 Conflict).
    #[error("precondition failed: UID in precondition: {expected}, UID in object meta: {}", .current.meta().uid)]
    UidMismatch {
        /// The record as it is now.
        current: Arc<Record>,
        /// The UID the writer asked for.
        expected: Uid,
    },
    /// The asked-for revision is older than the log (API: 410 Expired). List again.
    #[error("revision {requested} has been compacted; the oldest available revision is {oldest}")]
    Compacted {
        /// The revision that was asked for.
        requested: u64,
        /// The oldest revision that this resource can still be read or watched from.
        oldest: u64,
    },
    /// The asked-for revision has not happened yet (API: 504 "Too large resource version").
    #[error("revision {requested} is in the future, the store is at {current}")]
    FutureRevision {
        /// The revision that was asked for.
        requested: u64,
        /// The store's revision.
        current: u64,
    },
    /// The body exceeds [`crate::limits::BODY_BYTES_MAX`] (API: 413).
    #[error("the object has {bytes} bytes, more than the limit of {limit}")]
    TooLarge {
        /// Size of the body.
        bytes: usize,
        /// The most that is taken, in bytes.
        limit: usize,
    },
    /// The records take all the room they may, and this write would make them more (API: 507). Deletions and writes that
    /// make objects smaller still pass.
    #[error("the store is full: its objects take {bytes} of {limit} bytes; delete objects")]
    Full {
        /// Bytes that all records take.
        bytes: usize,
        /// The most that all records may take, in bytes.
        limit: usize,
    },
    /// The records of one namespace take all the room they may (API: 507); other namespaces are not affected.
    #[error(
        "namespace {namespace} is full: its objects take {bytes} bytes, the limit is {limit} (--quota-namespace-bytes); \
         delete objects to make room"
    )]
    NamespaceFull {
        /// The namespace.
        namespace: String,
        /// Bytes that its records take.
        bytes: usize,
        /// The most that they may take, in bytes.
        limit: usize,
    },
    /// The body has no empty `metadata.resourceVersion` string where the revision belongs: a fault of the caller.
    #[error("the body has no metadata.resourceVersion")]
    BadBody,
    /// The object is to be encrypted on the disk, and cannot be now (API: 500). Nothing was written.
    #[error("{0}")]
    Sealed(SealError),
    /// The engine could not take the batch: disk full, an I/O error (API: 500 or 503). Nothing was published. A retry
    /// helps as soon as the disk is well again; after a failed sync, only once the store was opened anew.
    #[error("the write could not be stored: {0}")]
    Engine(Arc<EngineError>),
    /// The store could not be opened.
    #[error("cannot open the store: {0}")]
    Open(Arc<EngineError>),
    /// Those who keep what is mirrored here did not do what was asked (API: 500, with these words). Of a write nobody knows
    /// whether it happened.
    #[error("{0}")]
    Elsewhere(String),
    /// The store is shutting down.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Whether the same request may succeed later without the caller changing it.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::Engine(_) | Self::FutureRevision { .. } | Self::Elsewhere(_))
    }
}
