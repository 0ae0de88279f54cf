//! One change as watchers see it. Each event has cells for its encoded frames, so that a frame is encoded once for all watchers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::limits::FRAME_CACHE_BYTES_MAX;
use crate::record::Record;

/// The kind of a change of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The record was created.
    Added,
    /// The record was replaced.
    Modified,
    /// The record was removed. The event's record is its last state with the deletion's revision.
    Deleted,
}

/// The encodings of watch frames that are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// JSON of the stored version.
    Json,
    /// Kubernetes protobuf of the stored version.
    Protobuf,
}

const FRAMES: usize = 2;

/// The frame in one encoding. It is empty until the first watcher has encoded it.
type FrameCell = Arc<OnceLock<Bytes>>;

/// One change of a record. Its `revision` is unique, and ascends within a cursor.
pub struct Event {
    /// The revision of the change.
    pub revision: u64,
    /// Whether the record was created, changed or removed.
    pub kind: EventKind,
    /// The record after the change. For a deletion: its last state with the deletion's revision.
    pub record: Arc<Record>,
    /// The record before the change. Selectors need it to notice an object that leaves their selection.
    pub previous: Option<Arc<Record>>,
    /// The time of the commit, in seconds of the store's clock.
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

    /// Returns the event's frame in an encoding, and calls `make` if it is not cached. The cached frames of all events together are
    /// bounded by [`FRAME_CACHE_BYTES_MAX`], and the oldest are dropped first; a watcher that lags then encodes again.
    pub fn frame(self: &Arc<Self>, encoding: Frame, make: impl FnOnce(&Self) -> Bytes) -> Bytes {
        // The lock covers only the cells: a watcher never waits for the encoder of another encoding or for a frame that exists.
        // Watchers that need the frame being encoded wait for it instead of encoding it again.
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

    /// The bytes that the log accounts for this event: the event itself, and the records that only the log holds.
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

/// Counts the bytes of cached frames and drops the oldest beyond the bound.
#[derive(Default)]
pub(crate) struct FrameBudget {
    kept: Mutex<KeptFrames>,
}

/// The cached frames, oldest first, and the sum of their bytes.
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
            // This call would never return if the event were locked while a frame is encoded.
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
