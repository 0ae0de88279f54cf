//! One stored object: its bytes in either encoding, its revisions, and the values that selectors need.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use parking_lot::Mutex;

use crate::key::Key;
use crate::meta::RecordMeta;
use crate::text::{Sample, Texts};

/// An object as it was at one revision. What it says never changes; how it lies in memory does.
pub struct Record {
    key: Key,
    revision: u64,
    create_revision: u64,
    /// Where the decimal revision begins in the JSON.
    revision_at: u32,
    meta: RecordMeta,
    texts: Mutex<Texts>,
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
        let texts = Mutex::new(Texts::new(bytes));
        Self { key, revision, create_revision, revision_at, meta, texts }
    }

    /// The record's name.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Canonical JSON, `metadata.resourceVersion` included. Copies nothing while the record is new; later the bytes are put
    /// together from what the record has in common with others, so ask once.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.texts.lock().json()
    }

    /// Appends the JSON to `out`, without making it a text of its own first.
    pub fn put(&self, out: &mut impl BufMut) {
        self.texts.lock().json_pieces(|piece| {
            out.put_slice(piece);
            ControlFlow::Continue(())
        });
    }

    /// The same, with `instead` in the place of `head` where it begins with that. In a record that is told by another, `head` has to
    /// lie within its first piece, as what all objects of a kind begin with does; else it stays.
    pub fn put_after(&self, head: &[u8], instead: &[u8], out: &mut impl BufMut) {
        let mut is_first = true;
        self.texts.lock().json_pieces(|piece| {
            let first = is_first && !piece.is_empty();
            is_first &= piece.is_empty();
            match piece.strip_prefix(head).filter(|_| first && !head.is_empty()) {
                Some(rest) => {
                    out.put_slice(instead);
                    out.put_slice(rest);
                }
                None => out.put_slice(piece),
            }
            ControlFlow::Continue(())
        });
    }

    /// Whether the JSON begins with the pieces of `head`, one after the other.
    #[must_use]
    pub fn begins_with(&self, head: &[&[u8]]) -> bool {
        let head = head.concat();
        let mut at = 0;
        self.texts.lock().json_pieces(|piece| {
            let len = piece.len().min(head.len() - at);
            if piece[..len] != head[at..at + len] {
                return ControlFlow::Break(());
            }
            at += len;
            if at == head.len() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        at == head.len()
    }

    /// Length of the JSON.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is no empty JSON")]
    pub fn len(&self) -> usize {
        self.texts.lock().json_len()
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

    /// The protobuf form if somebody asked for it before.
    #[must_use]
    pub fn protobuf_if_made(&self) -> Option<Bytes> {
        self.texts.lock().protobuf()
    }

    /// Length of the protobuf form if somebody asked for it before.
    #[must_use]
    pub fn protobuf_len_if_made(&self) -> Option<usize> {
        self.texts.lock().protobuf_len()
    }

    /// Keeps a protobuf form that was made outside; the first one stays.
    pub fn set_protobuf(&self, bytes: &Bytes) {
        self.texts.lock().set_protobuf(bytes);
    }

    /// The JSON while it lies in memory as it is, and may be a sample for others.
    pub(crate) fn plain(&self) -> Option<Bytes> {
        self.texts.lock().plain().cloned()
    }

    /// Holds the bytes by what differs from the sample's; gives whether they are like it.
    pub(crate) fn tell_by(&self, sample: &Arc<Sample>) -> bool {
        self.texts.lock().tell_by(sample)
    }

    /// This record's bytes as they would be at another revision: what a watcher of a deletion is shown.
    pub(crate) fn splice(&self, revision: u64) -> (Bytes, u32) {
        let bytes = self.bytes();
        let (head, tail) = self.parts(&bytes);
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

    /// What this record costs in memory while its JSON lies there as it is, about. It is less when the record is told by
    /// another, and the same at all times, so that what was added can be taken off.
    pub(crate) fn cost(&self) -> usize {
        self.len() + self.key.name.len() + self.meta.fields.values.len() + size_of::<Self>() + 64
    }

    /// The record's JSON before and after the digits of the revision.
    pub(crate) fn parts<'a>(&self, bytes: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let at = self.revision_at as usize;
        let digits = self.revision.checked_ilog10().unwrap_or(0) as usize + 1;
        (&bytes[..at], &bytes[at + digits..])
    }
}

impl fmt::Debug for Record {
    /// Names the record; never prints its bytes, which may be a Secret's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({} at {}, {} bytes)", self.key, self.revision, self.len())
    }
}
