//! The bounded queue between writers and the committer's thread. Writers wait asynchronously for room; the thread
//! takes all that is there at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::StoreError;
use crate::limits::{BATCH_BYTES_MAX, BATCH_WRITES_MAX, QUEUE_WRITES_MAX};
use crate::write::{Committed, Write};

/// Where a writer waits for its answer.
pub(crate) type Reply = oneshot::Sender<Result<Committed, StoreError>>;

/// A write in the queue.
pub(crate) struct Pending {
    pub write: Write,
    pub reply: Reply,
    _room: Option<OwnedSemaphorePermit>,
}

impl Pending {
    pub fn new(write: Write, reply: Reply) -> Self {
        Self { write, reply, _room: None }
    }
}

/// What the committer's thread wakes up for.
pub(crate) enum Taken {
    Batch(Vec<Pending>),
    /// The deadline came first.
    Deadline,
    /// The queue is closed and empty.
    Closed,
}

pub(crate) struct Queue {
    room: Arc<Semaphore>,
    waiting: Mutex<(VecDeque<Pending>, bool)>,
    filled: Condvar,
}

impl Default for Queue {
    fn default() -> Self {
        Self { room: Arc::new(Semaphore::new(QUEUE_WRITES_MAX)), waiting: Mutex::default(), filled: Condvar::new() }
    }
}

impl Queue {
    /// Adds a write, waiting for room; after this returns, the write will happen whether or not anybody waits for it.
    pub async fn push(&self, write: Write, reply: Reply) -> Result<(), StoreError> {
        let room = Arc::clone(&self.room).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let mut guard = self.waiting.lock();
        if guard.1 {
            return Err(StoreError::Closed);
        }
        guard.0.push_back(Pending { write, reply, _room: Some(room) });
        drop(guard);
        self.filled.notify_one();
        Ok(())
    }

    /// Refuses further writes; those waiting are still taken.
    pub fn close(&self) {
        self.waiting.lock().1 = true;
        self.room.close();
        self.filled.notify_one();
    }

    /// Everything that waits, within the bounds of a batch; blocks the thread until there is something.
    pub fn take(&self, deadline: Option<Instant>) -> Taken {
        let mut guard = self.waiting.lock();
        while guard.0.is_empty() {
            if guard.1 {
                return Taken::Closed;
            }
            match deadline {
                None => self.filled.wait(&mut guard),
                Some(deadline) => {
                    if self.filled.wait_until(&mut guard, deadline).timed_out() && guard.0.is_empty() {
                        return Taken::Deadline;
                    }
                }
            }
        }
        let mut batch = Vec::with_capacity(guard.0.len().min(BATCH_WRITES_MAX));
        let mut bytes = 0;
        while let Some(next) = guard.0.front() {
            bytes += next.write.cost();
            if !batch.is_empty() && (batch.len() >= BATCH_WRITES_MAX || bytes > BATCH_BYTES_MAX) {
                break;
            }
            batch.extend(guard.0.pop_front());
        }
        Taken::Batch(batch)
    }
}
