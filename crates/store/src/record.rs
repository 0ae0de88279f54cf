//! One stored object: its bytes, revisions, selector values, and slots for what readers derive from it once.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::body::Body;
use crate::key::Key;
use crate::meta::RecordMeta;

/// An object as it was at one revision. Immutable but for the derived slots, which are filled at most once.
pub struct Record {
    key: Key,
    bytes: Bytes,
    revision: u64,
    create_revision: u64,
    /// Where the decimal revision begins in `bytes`.
    revision_at: u32,
    meta: RecordMeta,
    protobuf: OnceLock<Bytes>,
    decoded: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Record {
    pub(crate) fn new(
        key: Key,
        bytes: Bytes,
        revision_at: u32,
        revision: u64,
        create_revision: u64,
        meta: RecordMeta,
    ) -> Self {
        let (protobuf, decoded) = (OnceLock::new(), OnceLock::new());
        Self { key, bytes, revision, create_revision, revision_at, meta, protobuf, decoded }
    }

    /// The record's name.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Canonical JSON, `metadata.resourceVersion` included. Cloning it copies no bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The revision of the last change: the object's `resourceVersion`.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The revision at which this incarnation of the key was created.
    #[must_use]
    pub fn create_revision(&self) -> u64 {
        self.create_revision
    }

    /// UID, labels, selectable fields.
    #[must_use]
    pub fn meta(&self) -> &RecordMeta {
        &self.meta
    }

    /// The object in protobuf, transcoded by `make` the first time anybody asks and kept beside the JSON.
    pub fn protobuf(&self, make: impl FnOnce(&Bytes) -> Bytes) -> Bytes {
        self.protobuf.get_or_init(|| make(&self.bytes)).clone()
    }

    /// The protobuf form if somebody asked for it before.
    #[must_use]
    pub fn protobuf_if_made(&self) -> Option<Bytes> {
        self.protobuf.get().cloned()
    }

    /// Keeps a protobuf form that was made outside; the first one stays.
    pub fn set_protobuf(&self, bytes: Bytes) -> Bytes {
        self.protobuf.get_or_init(|| bytes).clone()
    }

    /// The object decoded to a type, made by `make` once and shared by all in-process readers. One type is kept per
    /// record; a reader of another type gets its own copy each time.
    ///
    /// # Errors
    /// What `make` returns; failures are not remembered.
    pub fn decoded<T: Any + Send + Sync, E>(&self, make: impl FnOnce(&Bytes) -> Result<T, E>) -> Result<Arc<T>, E> {
        if let Some(kept) = self.decoded.get()
            && let Ok(value) = Arc::clone(kept).downcast::<T>()
        {
            return Ok(value);
        }
        let value = Arc::new(make(&self.bytes)?);
        let kept = self.decoded.get_or_init(|| value.clone());
        Ok(Arc::clone(kept).downcast::<T>().unwrap_or(value))
    }

    /// Whether storing `body` would change nothing but the revision: such a write is best left out.
    #[must_use]
    pub fn same_but_revision(&self, body: &Body) -> bool {
        let (head, tail) = body.parts();
        let (own_head, own_tail) = self.parts();
        head == own_head && tail == own_tail
    }

    /// This record's bytes as they would be at another revision: what a watcher of a deletion is shown.
    pub(crate) fn splice(&self, revision: u64) -> (Bytes, u32) {
        let (head, tail) = self.parts();
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(revision).as_bytes();
        let mut whole = Vec::with_capacity(head.len() + digits.len() + tail.len());
        whole.extend_from_slice(head);
        whole.extend_from_slice(digits);
        whole.extend_from_slice(tail);
        (Bytes::from(whole), self.revision_at)
    }

    pub(crate) fn revision_at(&self) -> u32 {
        self.revision_at
    }

    /// What this record costs in memory, about, without the protobuf and decoded forms.
    pub(crate) fn cost(&self) -> usize {
        self.bytes.len() + self.key.name.len() + self.meta.fields.values.len() + size_of::<Self>() + 64
    }

    /// The bytes before and after the digits of the revision.
    fn parts(&self) -> (&[u8], &[u8]) {
        let at = self.revision_at as usize;
        let digits = self.revision.checked_ilog10().unwrap_or(0) as usize + 1;
        (&self.bytes[..at], &self.bytes[at + digits..])
    }
}

impl fmt::Debug for Record {
    /// Names the record; never prints its bytes, which may be a Secret's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({} at {}, {} bytes)", self.key, self.revision, self.bytes.len())
    }
}
