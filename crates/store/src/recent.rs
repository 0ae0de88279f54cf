//! The recently written records, up to a bound. They are in memory without delta encoding.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::limits::RECENT_BYTES_MAX;
use crate::record::Record;

/// The most records that wait for a writer to encode them. Further records keep their plain bytes.
const GONE_MAX: usize = 256;

/// The records that were written most recently.
#[derive(Default)]
pub(crate) struct RecentRecords {
    kept: Mutex<RecentQueue>,
}

/// The recent records, oldest first, and the bytes of their JSON.
#[derive(Default)]
struct RecentQueue {
    queue: VecDeque<(Weak<Record>, usize)>,
    bytes: usize,
    gone: Vec<Arc<Record>>,
}

impl RecentRecords {
    /// Adds a new record. The oldest records leave when the bound is exceeded.
    pub fn keep(&self, record: &Arc<Record>) {
        let mut guard = self.kept.lock();
        let kept = &mut *guard;
        kept.queue.push_back((Arc::downgrade(record), record.len()));
        kept.bytes += record.len();
        while kept.bytes > RECENT_BYTES_MAX {
            let Some((record, len)) = kept.queue.pop_front() else { break };
            kept.bytes -= len;
            kept.gone.extend(record.upgrade());
        }
        if kept.gone.len() > GONE_MAX {
            kept.gone.clear();
        }
    }

    /// Takes the records that are no longer recent. To delta-encode a record takes as long as to read it a few times, so the writers do
    /// this in parallel, not the one committer.
    pub fn take_gone(&self) -> Vec<Arc<Record>> {
        std::mem::take(&mut self.kept.lock().gone)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::key::{Key, Resource};
    use crate::meta::RecordMeta;

    fn record(bytes: usize) -> Arc<Record> {
        let key = Key::new(Resource::parse("things"), "", "a");
        Arc::new(Record::new(key, Bytes::from(vec![b'1'; bytes]), 0, 1, 1, RecordMeta::default()))
    }

    #[test]
    fn the_oldest_records_leave_when_the_bound_is_exceeded() {
        let recent = RecentRecords::default();
        let gone = || recent.take_gone().iter().map(|record| record.len()).collect::<Vec<_>>();
        let (first, second, third) = (record(RECENT_BYTES_MAX / 2), record(RECENT_BYTES_MAX / 2), record(1));
        recent.keep(&first);
        recent.keep(&second);
        assert_eq!(gone(), [0; 0]);
        recent.keep(&third);
        assert_eq!(gone(), [first.len()]);
        assert_eq!(gone(), [0; 0], "each record is returned once");
        drop(second);
        let large = record(RECENT_BYTES_MAX + 1);
        recent.keep(&large);
        assert_eq!(gone(), [1, large.len()], "dropped records are not returned, and the others are within the bound");
    }
}
