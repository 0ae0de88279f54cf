//! One stored object: its bytes in both encodings, its revisions, and the values that selectors compare.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;

use crate::cut::{FirstField, MetadataCutter, metadata_range};
use crate::key::Key;
use crate::meta::RecordMeta;
use crate::text::{Sample, Texts};

/// An object at one revision. Its content never changes, but its form in memory does: the JSON is plain bytes while the record is new,
/// and may later be a delta to the JSON of a similar record (see `Sample`). Readers see the same bytes in both forms.
pub struct Record {
    key: Key,
    revision: u64,
    create_revision: u64,
    /// The offset of the decimal revision in the JSON.
    revision_at: u32,
    mark: AtomicU32,
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
        Self { key, revision, create_revision, revision_at, mark: AtomicU32::new(0), meta, texts }
    }

    /// The same record with other values beside its bytes.
    pub(crate) fn with_meta(&self, meta: RecordMeta) -> Self {
        Self::new(self.key.clone(), self.bytes(), self.revision_at, self.revision, self.create_revision, meta)
    }

    /// The record's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The canonical JSON, including `metadata.resourceVersion`. This copies nothing while the record is new. Later each call decodes the
    /// bytes, so a caller should call it once.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.texts.lock().json()
    }

    /// Appends the JSON to `out`, without assembling it separately first.
    pub fn put(&self, out: &mut impl BufMut) {
        self.texts.lock().json_pieces(|piece| {
            out.put_slice(piece);
            ControlFlow::Continue(())
        });
    }

    /// Appends the JSON to `out`, with `instead` in place of `head` if the JSON begins with `head`. In a delta-encoded record, `head` must
    /// be within the first piece, which holds for a beginning that all objects of a kind share; otherwise `head` stays.
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

    /// Appends the JSON of the object's metadata to `out`. The rest of the JSON is neither decoded nor looked at. Returns whether all of
    /// it was found; it is missing only from bytes that are no object.
    pub fn put_metadata(&self, out: &mut BytesMut) -> bool {
        let mut texts = self.texts.lock();
        let (mut cutter, begin) = (MetadataCutter::new(self.revision_at, texts.metadata_end), out.len());
        out.reserve(texts.metadata_end as usize);
        texts.json_pieces(|piece| cutter.feed(piece, out));
        texts.metadata_end = cutter.end();
        drop(texts);
        if !cutter.is_done() {
            out.truncate(begin);
        }
        cutter.is_done()
    }

    /// The JSON, as [`Record::bytes`], and the range of the object's metadata in it, which is missing only from bytes that are no object.
    #[must_use]
    pub fn bytes_with_metadata(&self) -> (Bytes, Option<Range<usize>>) {
        let mut texts = self.texts.lock();
        let json = texts.json();
        let range = metadata_range(&json, self.revision_at, texts.metadata_end);
        texts.metadata_end = range.as_ref().map_or(0, |range| range.end as u32);
        (json, range)
    }

    /// The length of the metadata's message, which is the first field of the protobuf form if there is one, and otherwise the length
    /// that was noted with [`Record::set_metadata_message_len`]. No more than the field's tag and length are decoded.
    #[must_use]
    pub fn metadata_message_len(&self) -> Option<usize> {
        let mut field = FirstField::new();
        let texts = self.texts.lock();
        texts.protobuf_pieces(|piece| field.measure(piece));
        field.length().or_else(|| texts.metadata_message_len())
    }

    /// Notes the length of the metadata's message, with its tag and length, of a record without a protobuf form.
    pub fn set_metadata_message_len(&self, length: usize) {
        self.texts.lock().set_metadata_message_len(length);
    }

    /// Appends the first field of the protobuf form, with its tag and length, to `out`: the metadata. The rest is not decoded. Returns
    /// its length, or `None` if there is no protobuf form or it begins with another field.
    pub fn put_metadata_message(&self, out: &mut BytesMut) -> Option<usize> {
        let (mut cutter, begin) = (FirstField::new(), out.len());
        self.texts.lock().protobuf_pieces(|piece| cutter.feed(piece, out));
        if !cutter.is_done() {
            out.truncate(begin);
        }
        cutter.length().filter(|_| cutter.is_done())
    }

    /// Whether the JSON begins with the concatenated pieces of `head`.
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

    /// The length of the JSON in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is no empty JSON")]
    pub fn len(&self) -> usize {
        self.texts.lock().json_len()
    }

    /// The revision of the last change, which is the object's `resourceVersion`.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The revision at which the record was created. A key that is deleted and created again has a new one.
    #[must_use]
    pub fn create_revision(&self) -> u64 {
        self.create_revision
    }

    /// The UID, the labels and the selectable fields.
    #[must_use]
    pub fn meta(&self) -> &RecordMeta {
        &self.meta
    }

    /// The protobuf form, if it was set before and is kept.
    #[must_use]
    pub fn protobuf_if_made(&self) -> Option<Bytes> {
        self.texts.lock().protobuf()
    }

    /// Appends the protobuf form to `out`, without assembling it separately first. Returns `false`, and appends nothing, if it is not
    /// kept.
    pub fn put_protobuf(&self, out: &mut impl BufMut) -> bool {
        let texts = self.texts.lock();
        texts.protobuf_pieces(|piece| {
            out.put_slice(piece);
            ControlFlow::Continue(())
        });
        texts.has_protobuf()
    }

    /// The length of the protobuf form, if it was set before.
    #[must_use]
    pub fn protobuf_len_if_made(&self) -> Option<usize> {
        self.texts.lock().protobuf_len()
    }

    /// Sets the protobuf form. If there is one already, it stays. Of a record that is similar to no other only its length is kept.
    pub fn set_protobuf(&self, bytes: &Bytes) {
        self.texts.lock().set_protobuf(bytes);
    }

    /// The mark that a reader or writer has set, or 0. It is not stored on the disk.
    #[must_use]
    pub fn mark(&self) -> u32 {
        self.mark.load(Ordering::Relaxed)
    }

    /// Sets a mark about the JSON, whose bytes never change. The store does not interpret it.
    pub fn set_mark(&self, mark: u32) {
        self.mark.store(mark, Ordering::Relaxed);
    }

    /// The additional form of the record with this number, if it was set.
    #[must_use]
    pub fn form(&self, id: u32) -> Option<Bytes> {
        self.texts.lock().form(id)
    }

    /// Sets an additional form of the record, which is kept while the record exists. Forms with numbers below `oldest` are dropped.
    pub fn set_form(&self, id: u32, oldest: u32, form: &Bytes) {
        self.texts.lock().set_form(id, oldest, form);
    }

    /// The JSON, if it is in memory as plain bytes and so can become a sample for others.
    pub(crate) fn plain(&self) -> Option<Bytes> {
        self.texts.lock().plain().cloned()
    }

    /// Notes that the record was compared with the samples.
    pub(crate) fn set_compared(&self) {
        self.texts.lock().set_compared();
    }

    /// The bytes of the protobuf form in memory.
    #[cfg(test)]
    pub(crate) fn protobuf_bytes_held(&self) -> usize {
        self.texts.lock().protobuf_bytes_held()
    }

    /// Encodes the record as a delta to the sample. Returns whether the two are similar.
    pub(crate) fn encode_with(&self, sample: &Arc<Sample>) -> bool {
        self.texts.lock().encode_with(sample)
    }

    /// The record's bytes with another revision, which watchers of a deletion get.
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

    /// The approximate bytes of memory that the record takes with plain JSON. A delta-encoded record takes less, but its cost stays the
    /// same, so that what was added can be subtracted.
    pub(crate) fn cost(&self) -> usize {
        self.len() + self.key.name.len() + self.meta.fields.values.len() + size_of::<Self>() + 64
    }

    /// The JSON before and after the digits of the revision.
    pub(crate) fn parts<'a>(&self, bytes: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let at = self.revision_at as usize;
        let digits = self.revision.checked_ilog10().unwrap_or(0) as usize + 1;
        (&bytes[..at], &bytes[at + digits..])
    }
}

impl fmt::Debug for Record {
    /// Prints the record's key and never its bytes, which may be those of a Secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({} at {}, {} bytes)", self.key, self.revision, self.len())
    }
}
