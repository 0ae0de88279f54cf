//! Records that end by themselves: Events after their time to live. Which records those are is said by
//! `RecordMeta::expires_at_s`; this keeps them in order of time and deletes them in batches.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::event::EventKind;
use crate::limits::EXPIRY_BATCH_MAX;
use crate::record::Record;

struct Due {
    at_s: u64,
    record: Weak<Record>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at_s == other.at_s
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_s.cmp(&other.at_s)
    }
}

/// The records that will expire, soonest first. Bounded by the number of live records that expire, plus those that
/// were replaced since.
#[derive(Default)]
pub(crate) struct Expiry {
    due: Mutex<BinaryHeap<Reverse<Due>>>,
    /// Rung when there is something to expire after there was nothing.
    pub first: Notify,
}

impl Expiry {
    /// Notes a record that was stored.
    pub fn note(&self, kind: EventKind, record: &Arc<Record>) {
        let at_s = record.meta().expires_at_s;
        if at_s == 0 || kind == EventKind::Deleted {
            return;
        }
        let mut due = self.due.lock();
        due.push(Reverse(Due { at_s, record: Arc::downgrade(record) }));
        if due.len() == 1 {
            self.first.notify_one();
        }
    }

    /// When the next record is due.
    pub fn next_s(&self) -> Option<u64> {
        self.due.lock().peek().map(|Reverse(due)| due.at_s)
    }

    /// Takes records that are due by `now_s` and still in memory, at most a batch of them.
    pub fn take(&self, now_s: u64) -> Vec<Arc<Record>> {
        let mut due = self.due.lock();
        let mut taken = Vec::new();
        while taken.len() < EXPIRY_BATCH_MAX && due.peek().is_some_and(|Reverse(next)| next.at_s <= now_s) {
            let Some(Reverse(next)) = due.pop() else { break };
            taken.extend(next.record.upgrade());
        }
        taken
    }
}
