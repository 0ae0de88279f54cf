//! Expiry of records: Events are deleted after their time to live. `RecordMeta::expires_at_s` says when a record expires; this module
//! orders the records by that time and deletes them in batches.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::event::EventKind;
use crate::limits::EXPIRY_BATCH_MAX;
use crate::record::Record;

/// The time of expiry, and the record's revision, which distinguishes records that expire in the same second.
type At = (u64, u64);

/// The records that will expire, soonest first. Each live record has one entry, however often its key is rewritten.
#[derive(Default)]
pub(crate) struct Expiry {
    due: Mutex<BTreeMap<At, Arc<Record>>>,
    /// Notified when there is a record to expire after there was none.
    pub first: Notify,
}

/// A record's place in the order of expiry, or `None` if the record does not expire.
fn at(record: &Record) -> Option<At> {
    let at_s = record.meta().expires_at_s;
    (at_s != 0).then(|| (at_s, record.revision()))
}

impl Expiry {
    /// Notes a record that was stored or removed, and replaces the entry of the previous record.
    pub fn note(&self, kind: EventKind, record: &Arc<Record>, previous: Option<&Record>) {
        let (left, came) = (previous.and_then(at), at(record).filter(|_| kind != EventKind::Deleted));
        if left.is_none() && came.is_none() {
            return;
        }
        let mut due = self.due.lock();
        let was_empty = due.is_empty();
        left.and_then(|at| due.remove(&at));
        if let Some(at) = came {
            due.insert(at, Arc::clone(record));
            if was_empty {
                self.first.notify_one();
            }
        }
    }

    /// The time at which the next record expires, in seconds since the Unix epoch.
    pub fn next_s(&self) -> Option<u64> {
        self.due.lock().first_key_value().map(|((at_s, _), _)| *at_s)
    }

    /// The records that have expired by `now_s`, at most one batch of them. They remain until their deletion is noted.
    pub fn due(&self, now_s: u64) -> Vec<Arc<Record>> {
        let due = self.due.lock();
        due.range(..=(now_s, u64::MAX)).take(EXPIRY_BATCH_MAX).map(|(_, record)| Arc::clone(record)).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::key::{Key, Resource};
    use crate::meta::RecordMeta;

    #[test]
    fn a_key_has_one_entry_however_often_it_is_rewritten() {
        let expiry = Expiry::default();
        let record = |revision, expires_at_s| {
            let meta = RecordMeta { expires_at_s, ..RecordMeta::default() };
            Arc::new(Record::new(Key::new(Resource::parse("events"), "", "a"), Bytes::new(), 0, revision, 1, meta))
        };
        let mut last = record(1, 10);
        expiry.note(EventKind::Added, &last, None);
        for n in 2..1000 {
            let next = record(n, 10 + n);
            expiry.note(EventKind::Modified, &next, Some(&last));
            last = next;
        }
        assert_eq!(expiry.due.lock().len(), 1);
        assert_eq!(expiry.next_s(), Some(1009));
        assert!(expiry.due(1008).is_empty());
        assert_eq!(expiry.due(1009).len(), 1);
        expiry.note(EventKind::Deleted, &record(1000, 1009), Some(&last));
        assert_eq!(expiry.next_s(), None);
    }
}
