//! The errors of the store. The API server maps them to a `Status`.

use std::sync::Arc;

use crate::at_rest::SealError;
use crate::engine::EngineError;
use crate::meta::Uid;
use crate::record::Record;

/// Why a write was rejected or a read failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The key exists already (API: 409 AlreadyExists). A retry does not help while it exists.
    #[error("the object already exists at revision {}", .current.revision())]
    AlreadyExists {
        /// The existing record.
        current: Arc<Record>,
    },
    /// The key does not exist (API: 404 NotFound).
    #[error("the object does not exist")]
    NotFound,
    /// The record's revision is not the one that the writer expected (API: 409 Conflict). Read again and retry.
    #[error("the object is at revision {}, not {expected}", .current.revision())]
    Conflict {
        /// The current record.
        current: Arc<Record>,
        /// The revision that the writer expected.
        expected: u64,
    },
    /// The record has another UID than the writer expected (API: 409 Conflict).
    #[error("precondition failed: UID in precondition: {expected}, UID in object meta: {}", .current.meta().uid)]
    UidMismatch {
        /// The current record.
        current: Arc<Record>,
        /// The UID that the writer expected.
        expected: Uid,
    },
    /// The asked-for revision is older than the log (API: 410 Expired). List again.
    #[error("revision {requested} has been compacted; the oldest available revision is {oldest}")]
    Compacted {
        /// The requested revision.
        requested: u64,
        /// The oldest revision from which the resource can be read or watched.
        oldest: u64,
    },
    /// The store has not reached the requested revision yet (API: 504 "Too large resource version").
    #[error("revision {requested} is in the future, the store is at {current}")]
    FutureRevision {
        /// The requested revision.
        requested: u64,
        /// The store's current revision.
        current: u64,
    },
    /// The body exceeds [`crate::limits::BODY_BYTES_MAX`] (API: 413).
    #[error("the object has {bytes} bytes, more than the limit of {limit}")]
    TooLarge {
        /// The size of the body.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The records take all the room they may, and this write would make them more (API: 507). Deletions and writes that
    /// make objects smaller still pass.
    #[error("the store is full: its objects take {bytes} of {limit} bytes; delete objects")]
    Full {
        /// The bytes that all records use.
        bytes: usize,
        /// The limit for all records, in bytes.
        limit: usize,
    },
    /// The records of one namespace take all the room they may (API: 507); other namespaces are not affected.
    #[error(
        "namespace {namespace} is full: its objects take {bytes} of {limit} bytes (--quota-namespace-bytes); delete objects"
    )]
    NamespaceFull {
        /// Name of the namespace.
        namespace: String,
        /// Bytes that its records take.
        bytes: usize,
        /// The most that they may take, in bytes.
        limit: usize,
    },
    /// The body has no empty `metadata.resourceVersion` string where the revision belongs: a fault of the caller.
    #[error("the body has no metadata.resourceVersion")]
    BadBody,
    /// The object must be encrypted on the disk and cannot be now (API: 500). Nothing was written.
    #[error("{0}")]
    Sealed(SealError),
    /// The engine could not store the batch, because the disk is full or failed (API: 500 or 503). Nothing was published. A retry helps
    /// once the disk works again; after a failed sync, only once the store was opened again.
    #[error("the write could not be stored: {0}")]
    Engine(Arc<EngineError>),
    /// The store could not be opened.
    #[error("cannot open the store: {0}")]
    Open(Arc<EngineError>),
    /// The shared storage that this store mirrors failed to perform the request (API: 500 with this message). It is not known whether a
    /// write happened.
    #[error("{0}")]
    Elsewhere(String),
    /// The store is shutting down.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Whether the same request may succeed later without a change by the caller.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::Engine(_) | Self::FutureRevision { .. } | Self::Elsewhere(_))
    }
}
