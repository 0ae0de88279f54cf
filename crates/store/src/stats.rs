//! Counters of the committer's work. They show that an idle cluster makes no synced writes, and that many writes share one sync.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub writes: AtomicU64,
    pub batches: AtomicU64,
    pub syncs: AtomicU64,
    pub bytes: AtomicU64,
}

/// The values of the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// The number of committed writes.
    pub writes: u64,
    /// The number of committed batches.
    pub batches: u64,
    /// The number of syncs: one per batch with a synced write, and those for relaxed writes.
    pub syncs: u64,
    /// The bytes of the committed objects, as stored.
    pub bytes: u64,
}

impl Counters {
    /// Counts a batch that was appended.
    pub fn appended(&self, writes: usize, bytes: usize, synced: bool) {
        self.writes.fetch_add(writes as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        if synced {
            self.synced();
        }
    }
    /// Counts a sync.
    pub fn synced(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }
    /// Returns the current values.
    pub fn read(&self) -> Stats {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            writes: value(&self.writes),
            batches: value(&self.batches),
            syncs: value(&self.syncs),
            bytes: value(&self.bytes),
        }
    }
}
