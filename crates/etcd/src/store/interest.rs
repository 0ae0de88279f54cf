//! Who wants to hear of which keys. A commit marks the streams that its keys concern, and wakes no others: of hundreds of
//! watches most hear of nothing for long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::mvcc::{KeyRange, Matcher};

/// No revision has anything new.
pub const NOTHING: i64 = i64::MAX;

/// The ranges of all watches.
#[derive(Debug, Default)]
pub(super) struct Interests(Mutex<Ranges>);

#[derive(Debug, Default)]
struct Ranges {
    of: BTreeMap<(u64, i64), (KeyRange, Arc<Mark>)>,
    streams: u64,
    /// Made anew when a range comes or goes.
    matcher: Option<Matcher<Arc<Mark>>>,
}

#[derive(Debug)]
struct Mark {
    unread: AtomicI64,
    notify: Notify,
}

/// What one stream of watches wants to hear of. Dropped, it wants nothing more.
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

    /// Marks whom a change of a key concerns; who is to be woken is put to `woken`. The caller holds the state, so that no
    /// stream looks at it between the marks and what they stand for.
    pub fn mark(&self, key: &[u8], main: i64, woken: &mut Woken) {
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

    /// How many watches there are.
    pub fn watches(&self) -> usize {
        self.0.lock().of.len()
    }
}

/// Streams that have something new.
#[derive(Default)]
pub(super) struct Woken(Vec<Arc<Mark>>);

impl Woken {
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

    /// Takes a watch away.
    pub fn remove(&self, id: i64) {
        let mut ranges = self.all.0.lock();
        if ranges.of.remove(&(self.stream, id)).is_some() {
            ranges.matcher = None;
        }
    }

    /// The first revision with something new since this was asked last, or [`NOTHING`].
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
