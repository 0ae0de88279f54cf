//! Which streams watch which keys. A commit marks and wakes only the streams that watch its keys: of hundreds of
//! watches most have no events for a long time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::mvcc::{KeyRange, Matcher};

/// The value when no revision has anything new.
pub const NOTHING: i64 = i64::MAX;

/// The ranges of all watches.
#[derive(Debug, Default)]
pub(super) struct Interests(Mutex<Ranges>);

#[derive(Debug, Default)]
struct Ranges {
    of: BTreeMap<(u64, i64), (KeyRange, Arc<Mark>)>,
    streams: u64,
    /// Built again after a range was added or removed.
    matcher: Option<Matcher<Arc<Mark>>>,
}

#[derive(Debug)]
struct Mark {
    unread: AtomicI64,
    notify: Notify,
}

/// The ranges that one stream watches. Dropping it removes them.
#[derive(Debug)]
pub struct Interest {
    all: Arc<Interests>,
    stream: u64,
    mark: Arc<Mark>,
}

impl Interests {
    pub fn stream(self: &Arc<Self>) -> Interest {
        let mut ranges = self.0.lock();
        ranges.streams += 1;
        let mark = Arc::new(Mark { unread: AtomicI64::new(NOTHING), notify: Notify::new() });
        Interest { all: Arc::clone(self), stream: ranges.streams, mark }
    }

    /// Marks the streams that watch a key; those to wake are added to `woken`. The caller holds the lock of the state,
    /// so that no stream reads it between the marks and the changes.
    pub fn mark(&self, key: &[u8], main: i64, woken: &mut ReadyStreams) {
        let mut ranges = self.0.lock();
        let Ranges { of, matcher, .. } = &mut *ranges;
        let matcher =
            matcher.get_or_insert_with(|| Matcher::new(of.values().map(|(range, mark)| (Arc::clone(mark), range))));
        matcher.find(key, |mark| {
            if mark.unread.fetch_min(main, Ordering::Relaxed) == NOTHING {
                woken.0.push(Arc::clone(mark));
            }
        });
    }

    /// Returns the number of watches.
    pub fn watches(&self) -> usize {
        self.0.lock().of.len()
    }
}

/// Streams that have something new.
#[derive(Default)]
pub(super) struct ReadyStreams(Vec<Arc<Mark>>);

impl ReadyStreams {
    pub fn wake(self) {
        self.0.iter().for_each(|mark| mark.notify.notify_one());
    }
}

impl Interest {
    /// Adds the range of a watch of the stream.
    pub fn add(&self, id: i64, range: KeyRange) {
        let mut ranges = self.all.0.lock();
        ranges.matcher = None;
        ranges.of.insert((self.stream, id), (range, Arc::clone(&self.mark)));
    }

    /// Removes a watch.
    pub fn remove(&self, id: i64) {
        let mut ranges = self.all.0.lock();
        if ranges.of.remove(&(self.stream, id)).is_some() {
            ranges.matcher = None;
        }
    }

    /// Returns the first revision with something new since the last call, or [`NOTHING`].
    pub fn take(&self) -> i64 {
        self.mark.unread.swap(NOTHING, Ordering::Relaxed)
    }

    /// Waits until there is something new.
    pub async fn marked(&self) {
        self.mark.notify.notified().await;
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        let mut ranges = self.all.0.lock();
        let own: Vec<(u64, i64)> =
            ranges.of.range((self.stream, i64::MIN)..=(self.stream, i64::MAX)).map(|(id, _)| *id).collect();
        if !own.is_empty() {
            ranges.matcher = None;
        }
        for id in own {
            ranges.of.remove(&id);
        }
    }
}
