//! Which records are new: those written last, within a bound. They lie in memory as they are.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::limits::RECENT_BYTES_MAX;
use crate::record::Record;

/// Records that wait for a writer to look after them; beyond it they stay as they are.
const GONE_MAX: usize = 256;

/// The records that were written last.
#[derive(Default)]
pub(crate) struct RecentRecords {
    kept: Mutex<Kept>,
}

/// Recent records, oldest first, and the bytes of their JSON.
#[derive(Default)]
struct Kept {
    queue: VecDeque<(Weak<Record>, usize)>,
    bytes: usize,
    gone: Vec<Arc<Record>>,
}

impl RecentRecords {
    /// Takes a new record; the oldest make room for it.
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

    /// Records that are recent no longer. To hold them in less memory takes as long as to read them a few times, so writers do
    /// it, in parallel, and not the one committer.
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
    fn the_oldest_go_when_there_are_more_bytes_than_the_bound() {
        let recent = RecentRecords::default();
        let gone = || recent.take_gone().iter().map(|record| record.len()).collect::<Vec<_>>();
        let (first, second, third) = (record(RECENT_BYTES_MAX / 2), record(RECENT_BYTES_MAX / 2), record(1));
        recent.keep(&first);
        recent.keep(&second);
        assert_eq!(gone(), [0; 0]);
        recent.keep(&third);
        assert_eq!(gone(), [first.len()]);
        assert_eq!(gone(), [0; 0], "each is told once");
        drop(second);
        let large = record(RECENT_BYTES_MAX + 1);
        recent.keep(&large);
        assert_eq!(
            gone(),
            [1, large.len()],
            "those that nobody holds any more are not told, and nothing is beyond the bound"
        );
    }
}
