//! Writes that are under way: when the watch brings one of them, its JSON is in hand and need not be decoded.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use kelson_store::{Body, MirrorValue, RecordMeta, Writer};
use parking_lot::Mutex;

/// A write that was sent, or is about to be.
pub(crate) struct PendingWrite {
    /// The value as it is stored.
    value: Bytes,
    body: Body,
    meta: RecordMeta,
    writer: Writer,
}

/// Writes by etcd's key. As many as there are writers waiting.
#[derive(Default)]
pub(crate) struct Pending(Mutex<HashMap<Bytes, Vec<Arc<PendingWrite>>>>);

/// A write that is known as pending until this is dropped.
pub(crate) struct PendingGuard<'a> {
    pending: &'a Pending,
    key: Bytes,
    sent: Arc<PendingWrite>,
}

impl Pending {
    /// Notes a write.
    pub fn note(&self, key: Bytes, value: Bytes, (body, meta): (Body, RecordMeta), writer: Writer) -> PendingGuard<'_> {
        let sent = Arc::new(PendingWrite { value, body, meta, writer });
        self.0.lock().entry(key.clone()).or_default().push(Arc::clone(&sent));
        PendingGuard { pending: self, key, sent }
    }

    /// Removes and returns the decoded form of a stored value, if this server wrote it.
    pub fn take(&self, key: &Bytes, value: &Bytes) -> Option<MirrorValue> {
        let sent = self.0.lock().get(key)?.iter().find(|sent| sent.value == *value).cloned()?;
        Some(MirrorValue { body: sent.body.clone(), meta: sent.meta.clone(), writer: sent.writer })
    }
}

impl Drop for PendingGuard<'_> {
    fn drop(&mut self) {
        let mut pending = self.pending.0.lock();
        if let Some(of_key) = pending.get_mut(&self.key) {
            of_key.retain(|sent| !Arc::ptr_eq(sent, &self.sent));
            if of_key.is_empty() {
                pending.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_known_by_its_bytes_while_it_is_under_way() {
        let pending = Pending::default();
        let (key, value) = (Bytes::from_static(b"/registry/a"), Bytes::from_static(b"v"));
        let body = Body::locate(r#"{"metadata":{"resourceVersion":""}}"#).unwrap();
        let of = || (body.clone(), RecordMeta::default());
        let noted = pending.note(key.clone(), value.clone(), of(), Writer(7));
        let other = pending.note(key.clone(), Bytes::from_static(b"w"), of(), Writer::CLEAR);
        assert!(pending.take(&key, &Bytes::from_static(b"x")).is_none());
        let seen = pending.take(&key, &value).unwrap();
        assert_eq!(seen.writer, Writer(7));
        drop(noted);
        assert!(pending.take(&key, &value).is_none());
        drop(other);
        assert!(pending.0.lock().is_empty());
    }
}
