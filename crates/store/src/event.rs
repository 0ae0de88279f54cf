//! One change as watchers see it, with slots for its encoded frames so that each is encoded once for all watchers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::limits::FRAME_CACHE_BYTES_MAX;
use crate::record::Record;

/// What happened to the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It was created.
    Added,
    /// It was replaced.
    Modified,
    /// It was removed; the event's record is its last state with the deletion's revision.
    Deleted,
}

/// The encodings of a watch frame that are kept for reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// JSON of the stored version.
    Json,
    /// Kubernetes protobuf of the stored version.
    Protobuf,
}

const FRAMES: usize = 2;

/// One encoding's frame: empty until the first watcher has encoded it.
type FrameCell = Arc<OnceLock<Bytes>>;

/// One change. `revision` is unique and, within a cursor, ascending.
pub struct Event {
    /// The revision of the change.
    pub revision: u64,
    /// Whether the record came, changed or went.
    pub kind: EventKind,
    /// The record after the change (for a deletion: its last state with the deletion's revision).
    pub record: Arc<Record>,
    /// The record before the change; selectors need it to tell an object that leaves their view.
    pub previous: Option<Arc<Record>>,
    /// Clock reading at the commit.
    pub(crate) at_s: u64,
    frames: Mutex<[Option<FrameCell>; FRAMES]>,
    budget: Arc<FrameBudget>,
}

impl Event {
    pub(crate) fn new(
        kind: EventKind,
        record: Arc<Record>,
        previous: Option<Arc<Record>>,
        at_s: u64,
        budget: Arc<FrameBudget>,
    ) -> Self {
        Self { revision: record.revision(), kind, record, previous, at_s, frames: Mutex::default(), budget }
    }

    /// The event's frame in an encoding, made by `make` if it is not kept. Frames are kept within
    /// [`FRAME_CACHE_BYTES_MAX`] over all events, the oldest go first; a watcher that lags pays for its own encoding.
    pub fn frame(self: &Arc<Self>, encoding: Frame, make: impl FnOnce(&Self) -> Bytes) -> Bytes {
        // The lock covers the cells alone: watchers of another encoding, and everybody once the frame is there, never
        // wait for an encoder; those that need the very frame being made wait for it instead of making it again.
        let cell = Arc::clone(self.frames.lock()[encoding as usize].get_or_insert_default());
        let mut made = None;
        let frame = cell.get_or_init(|| {
            let frame = make(self);
            made = Some(frame.len());
            frame
        });
        if let Some(len) = made {
            self.budget.keep(self, encoding, len);
        }
        frame.clone()
    }

    /// What the log pays for keeping this event: what only the log holds, plus the event itself.
    pub(crate) fn cost(&self) -> usize {
        let gone = if self.kind == EventKind::Deleted { self.record.cost() } else { 0 };
        size_of::<Self>() + 24 + gone + self.previous.as_ref().map_or(0, |record| record.cost())
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} at {}", self.kind, self.record.key(), self.revision)
    }
}

/// Counts the bytes of kept frames and forgets the oldest beyond the bound.
#[derive(Default)]
pub(crate) struct FrameBudget {
    kept: Mutex<KeptFrames>,
}

/// Frames that are kept, oldest first, and their bytes in all.
#[derive(Default)]
struct KeptFrames {
    queue: VecDeque<(Weak<Event>, Frame, usize)>,
    bytes: usize,
}

impl FrameBudget {
    fn keep(&self, event: &Arc<Event>, encoding: Frame, len: usize) {
        let mut forget = Vec::new();
        {
            let mut guard = self.kept.lock();
            guard.queue.push_back((Arc::downgrade(event), encoding, len));
            guard.bytes += len;
            while guard.bytes > FRAME_CACHE_BYTES_MAX && guard.queue.len() > 1 {
                let Some((event, encoding, len)) = guard.queue.pop_front() else { break };
                guard.bytes -= len;
                forget.push((event, encoding));
            }
        }
        for (event, encoding) in forget {
            if let Some(event) = event.upgrade() {
                event.frames.lock()[encoding as usize] = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Key, Resource};
    use crate::meta::RecordMeta;

    #[test]
    fn encoding_one_frame_holds_up_no_other() {
        let budget = Arc::new(FrameBudget::default());
        let key = Key::new(Resource::parse("things"), "", "a");
        let record = Record::new(key, Bytes::from_static(b"1"), 0, 1, 1, RecordMeta::default());
        let event = Arc::new(Event::new(EventKind::Added, Arc::new(record), None, 0, budget));
        let json = event.frame(Frame::Json, |_| {
            // Were the event locked while a frame is made, this would never return.
            event.frame(Frame::Protobuf, |_| Bytes::from_static(b"p"))
        });
        assert_eq!(json, "p");
    }

    #[test]
    fn a_frame_is_made_once_until_the_budget_forgets_it() {
        let budget = Arc::new(FrameBudget::default());
        let event = || {
            let key = Key::new(Resource::parse("things"), "", "a");
            let record = Record::new(key, Bytes::from_static(b"1"), 0, 1, 1, RecordMeta::default());
            Arc::new(Event::new(EventKind::Added, Arc::new(record), None, 0, Arc::clone(&budget)))
        };
        let first = event();
        assert_eq!(first.frame(Frame::Json, |_| Bytes::from_static(b"x")), "x");
        assert_eq!(first.frame(Frame::Json, |_| panic!("made twice")), "x");
        let big = event();
        big.frame(Frame::Protobuf, |_| vec![0; FRAME_CACHE_BYTES_MAX].into());
        assert_eq!(first.frame(Frame::Json, |_| Bytes::from_static(b"again")), "again");
    }
}
