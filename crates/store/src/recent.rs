//! Which records keep their forms: those written last, within a bound.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::form::Form;
use crate::limits::FORM_RECORD_BYTES_MAX;
use crate::record::Record;

/// Forms that wait to be dropped by a writer; beyond it the committer drops them itself.
const GONE_MAX: usize = 256;

/// The forms of the records that were written last.
#[derive(Default)]
pub(crate) struct RecentForms {
    kept: Mutex<Kept>,
}

/// Records with a form, oldest first, and the bytes of their JSON.
#[derive(Default)]
struct Kept {
    queue: VecDeque<(Weak<Record>, usize)>,
    bytes: usize,
    gone: Vec<Form>,
}

impl RecentForms {
    /// Keeps the form of a new record; the oldest make room for it.
    pub fn keep(&self, record: &Arc<Record>, form: Form) {
        record.set_form(Some(form));
        let mut guard = self.kept.lock();
        let kept = &mut *guard;
        kept.queue.push_back((Arc::downgrade(record), record.bytes().len()));
        kept.bytes += record.bytes().len();
        while kept.bytes > FORM_RECORD_BYTES_MAX {
            let Some((record, len)) = kept.queue.pop_front() else { break };
            kept.bytes -= len;
            kept.gone.extend(record.upgrade().and_then(|record| record.set_form(None)));
        }
        if kept.gone.len() > GONE_MAX {
            kept.gone.clear();
        }
    }

    /// Forms that are kept no longer: to drop a tree takes as long as to make one, so writers do it, in parallel, and not
    /// the one committer.
    pub fn take_gone(&self) -> Vec<Form> {
        std::mem::take(&mut self.kept.lock().gone)
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
        let forms = RecentForms::default();
        let (first, second, third) = (record(FORM_RECORD_BYTES_MAX / 2), record(FORM_RECORD_BYTES_MAX / 2), record(1));
        forms.keep(&first, Arc::new(1u32));
        forms.keep(&second, Arc::new(2u32));
        assert_eq!((first.form::<u32>().as_deref(), second.form::<u32>().as_deref()), (Some(&1), Some(&2)));
        assert!(first.form::<u64>().is_none(), "a form is of one type");
        forms.keep(&third, MakeForm::new(|revision| Arc::new(revision)).make(3));
        assert!(first.form::<u32>().is_none());
        assert_eq!((second.form::<u32>().as_deref(), third.form::<u64>().as_deref()), (Some(&2), Some(&3)));
        assert_eq!((forms.take_gone().len(), forms.take_gone().len()), (1, 0));
        let large = record(FORM_RECORD_BYTES_MAX + 1);
        forms.keep(&large, Arc::new(4u32));
        assert!(large.form::<u32>().is_none() && second.form::<u32>().is_none(), "nothing is beyond the bound");
    }
}
