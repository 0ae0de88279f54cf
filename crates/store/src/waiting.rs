//! Readers that wait for a revision. A commit wakes those whose revision it reaches, and no others.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The readers that wait, by revision.
#[derive(Default)]
pub(crate) struct RevisionWaiters {
    waiting: Mutex<WaitingReaders>,
}

/// Each reader by the revision that it waits for and a unique number.
#[derive(Default)]
struct WaitingReaders {
    readers: BTreeMap<(u64, u64), oneshot::Sender<()>>,
    last: u64,
}

/// A reader that waits. It is forgotten when this is dropped.
pub(crate) struct RevisionWait<'w> {
    waiters: &'w RevisionWaiters,
    key: (u64, u64),
    woken: oneshot::Receiver<()>,
}

impl RevisionWaiters {
    /// Adds a reader that waits for a revision. The caller holds the state's lock, so that the revision is not reached meanwhile.
    pub fn add(&self, revision: u64) -> RevisionWait<'_> {
        let (wake, woken) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        waiting.last += 1;
        let key = (revision, waiting.last);
        waiting.readers.insert(key, wake);
        RevisionWait { waiters: self, key, woken }
    }

    /// Wakes the readers that wait for a revision up to `revision`.
    pub fn reached(&self, revision: u64) {
        let mut waiting = self.waiting.lock();
        while let Some(reader) = waiting.readers.first_entry().filter(|reader| reader.key().0 <= revision) {
            // A reader that does not wait any more needs no wake-up.
            let _gone = reader.remove().send(());
        }
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.waiting.lock().readers.len()
    }
}

impl RevisionWait<'_> {
    /// Waits until the revision is reached or the store closes. Cancel safe.
    pub async fn woken(&mut self) {
        let _closed = (&mut self.woken).await;
    }
}

impl Drop for RevisionWait<'_> {
    fn drop(&mut self) {
        self.waiters.waiting.lock().readers.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_commit_wakes_the_readers_whose_revision_it_reaches() {
        let waiters = RevisionWaiters::default();
        let mut waits: Vec<_> = [7, 5, 9, 7].into_iter().map(|revision| waiters.add(revision)).collect();
        waiters.reached(4);
        assert_eq!(waiters.count(), 4);
        waiters.reached(7);
        assert_eq!(waiters.count(), 1);
        for wait in [0, 1, 3] {
            waits[wait].woken().await;
        }
        assert!(waits[2].woken.try_recv().is_err());
        drop(waits);
        assert_eq!(waiters.count(), 0, "one that is dropped is forgotten");
    }
}
