//! Which records are new: those written last, within a bound. They keep their forms and lie in memory as they are.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::form::Form;
use crate::limits::RECENT_BYTES_MAX;
use crate::record::Record;

/// Records that wait for a writer to look after them; beyond it the committer drops their forms itself.
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
    /// Takes a new record with its form, if it has one; the oldest make room for it.
    pub fn keep(&self, record: &Arc<Record>, form: Option<Form>) {
        record.set_form(form);
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
            for record in kept.gone.drain(..) {
                record.set_form(None);
            }
        }
    }

    /// Records that are recent no longer, without their forms. To drop a tree takes as long as to make one, so writers do it,
    /// in parallel, and not the one committer.
    pub fn take_gone(&self) -> Vec<Arc<Record>> {
        let gone = std::mem::take(&mut self.kept.lock().gone);
        for record in &gone {
            record.set_form(None);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::form::MakeForm;
    use crate::key::{Key, Resource};
    use crate::meta::RecordMeta;

    fn record(bytes: usize) -> Arc<Record> {
        let key = Key::new(Resource::parse("things"), "", "a");
        Arc::new(Record::new(key, Bytes::from(vec![b'1'; bytes]), 0, 1, 1, RecordMeta::default()))
    }

    #[test]
    fn the_newest_keep_their_forms_within_the_bound() {
        let recent = RecentRecords::default();
        let (first, second, third) = (record(RECENT_BYTES_MAX / 2), record(RECENT_BYTES_MAX / 2), record(1));
        recent.keep(&first, Some(Arc::new(1u32)));
        recent.keep(&second, Some(Arc::new(2u32)));
        assert_eq!((first.form::<u32>().as_deref(), second.form::<u32>().as_deref()), (Some(&1), Some(&2)));
        assert!(first.form::<u64>().is_none(), "a form is of one type");
        recent.keep(&third, Some(MakeForm::new(|revision| Arc::new(revision)).make(3)));
        assert_eq!((recent.take_gone().len(), recent.take_gone().len()), (1, 0));
        assert!(first.form::<u32>().is_none());
        assert_eq!((second.form::<u32>().as_deref(), third.form::<u64>().as_deref()), (Some(&2), Some(&3)));
        let large = record(RECENT_BYTES_MAX + 1);
        recent.keep(&large, Some(Arc::new(4u32)));
        assert_eq!(recent.take_gone().len(), 3);
        assert!(large.form::<u32>().is_none() && second.form::<u32>().is_none(), "nothing is beyond the bound");
    }
}
