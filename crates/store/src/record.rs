//! One stored object: its bytes, revisions, selector values, and slots for what readers derive from it once.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::form::Form;
use crate::key::Key;
use crate::limits::DECODED_TYPES_MAX;
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
    decoded: OnceLock<Box<Decoded>>,
    form: Mutex<Option<Form>>,
}

/// One decoded form, and the next of another type.
struct Decoded {
    value: Arc<dyn Any + Send + Sync>,
    next: OnceLock<Box<Decoded>>,
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
        let (protobuf, decoded, form) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        Self { key, bytes, revision, create_revision, revision_at, meta, protobuf, decoded, form }
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

    /// The object decoded to a type, made by `make` once per type and shared by all in-process readers. At most
    /// [`DECODED_TYPES_MAX`] types are kept per record; readers of a further type get a copy of their own each time.
    ///
    /// # Errors
    /// What `make` returns; failures are not remembered.
    pub fn decoded<T: Any + Send + Sync, E>(&self, make: impl FnOnce(&Bytes) -> Result<T, E>) -> Result<Arc<T>, E> {
        if let Some(kept) = self.kept::<T>() {
            return Ok(kept);
        }
        let value = Arc::new(make(&self.bytes)?);
        let mut slot = &self.decoded;
        for _ in 0..DECODED_TYPES_MAX {
            let entry = slot.get_or_init(|| Box::new(Decoded { value: value.clone(), next: OnceLock::new() }));
            // Ours, or that of a reader of the same type who was faster.
            if let Ok(kept) = Arc::clone(&entry.value).downcast::<T>() {
                return Ok(kept);
            }
            slot = &entry.next;
        }
        Ok(value)
    }

    /// What the record was made of, while it is one of those written last ([`crate::Write::with_form`]).
    #[must_use]
    pub fn form<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let form = self.form.lock().clone()?;
        form.downcast().ok()
    }

    /// Sets or forgets the form; gives the former one.
    pub(crate) fn set_form(&self, form: Option<Form>) -> Option<Form> {
        std::mem::replace(&mut *self.form.lock(), form)
    }

    fn kept<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let entries = std::iter::successors(self.decoded.get(), |entry| entry.next.get());
        entries.into_iter().find_map(|entry| Arc::clone(&entry.value).downcast::<T>().ok())
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
    pub(crate) fn parts(&self) -> (&[u8], &[u8]) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Resource;

    #[test]
    fn each_type_is_decoded_once() {
        let key = Key::new(Resource::parse("things"), "", "a");
        let record = Record::new(key, Bytes::from_static(b"12"), 0, 1, 1, RecordMeta::default());
        let number = |b: &Bytes| std::str::from_utf8(b).map_or(Err("text"), |t| t.parse::<u32>().map_err(|_| "number"));
        assert_eq!(record.decoded::<u32, _>(|_| Err("not yet")), Err("not yet"), "a failure is not remembered");
        let first = record.decoded(number).expect("a number");
        let text = record.decoded(|b| Ok::<_, ()>(b.len())).expect("a length");
        assert_eq!((*first, *text), (12, 2));
        let again = record.decoded::<u32, ()>(|_| panic!("made twice")).expect("kept");
        assert!(Arc::ptr_eq(&first, &again));
        assert!(Arc::ptr_eq(&text, &record.decoded::<usize, ()>(|_| panic!("made twice")).expect("kept")));
        record.decoded(|_| Ok::<_, ()>(1i8)).expect("third");
        record.decoded(|_| Ok::<_, ()>(1i16)).expect("fourth");
        assert_eq!(record.decoded(|_| Ok::<_, ()>(5i64)), Ok(Arc::new(5)), "beyond the bound each reader has its own");
        assert_eq!(record.decoded(|_| Ok::<_, ()>(6i64)), Ok(Arc::new(6)));
    }
}
