//! The bounded queue between the writers and the committer's thread. Writers wait asynchronously for room in it. The thread takes all
//! queued writes at once, after a short wait for those that have been announced.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::StoreError;
use crate::limits::{BATCH_BYTES_MAX, BATCH_WRITES_MAX, COMPANY_WAIT_MAX_US, QUEUE_WRITES_MAX};
use crate::write::{Committed, Write};

/// The sender of a write's result.
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

/// Why the committer's thread was woken.
pub(crate) enum WakeReason {
    Batch(Vec<Pending>),
    /// The deadline passed before a write came.
    Deadline,
    /// The queue is closed and empty.
    Closed,
}

/// The announcement of a write that is being prepared. The write will enter the queue soon, or not at all.
#[must_use = "the write is expected for as long as this is held"]
pub struct ExpectedWrite(Arc<AtomicUsize>);

impl Drop for ExpectedWrite {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Waiting {
    writes: VecDeque<Pending>,
    closed: bool,
    /// The number of queued writes at which the committer's thread is woken.
    wanted: usize,
}

/// The queue of writes. Its length is bounded by a semaphore, and it counts announced writes so that a batch can wait for them.
pub(crate) struct Queue {
    room: Arc<Semaphore>,
    waiting: Mutex<Waiting>,
    filled: Condvar,
    /// Writes that are being prepared, waiting or being answered.
    expected: Arc<AtomicUsize>,
    /// The longest time that a batch waits for more writes.
    company: Duration,
}

impl Default for Queue {
    fn default() -> Self {
        Self::waiting_for(Duration::from_micros(COMPANY_WAIT_MAX_US))
    }
}

impl Queue {
    fn waiting_for(company: Duration) -> Self {
        Self {
            room: Arc::new(Semaphore::new(QUEUE_WRITES_MAX)),
            waiting: Mutex::new(Waiting { writes: VecDeque::new(), closed: false, wanted: 1 }),
            filled: Condvar::new(),
            expected: Arc::default(),
            company,
        }
    }

    /// Announces a write until the returned value is dropped.
    pub fn expect(&self) -> ExpectedWrite {
        self.expected.fetch_add(1, Ordering::Relaxed);
        ExpectedWrite(Arc::clone(&self.expected))
    }

    /// Adds a write, after waiting for room. After this returns, the write happens whether or not its writer waits for the result.
    pub async fn push(&self, write: Write, reply: Reply) -> Result<(), StoreError> {
        let room = Arc::clone(&self.room).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let mut guard = self.waiting.lock();
        if guard.closed {
            return Err(StoreError::Closed);
        }
        guard.writes.push_back(Pending { write, reply, _room: Some(room) });
        // While the thread waits for more writes than there are, it is not woken.
        let enough = guard.writes.len() >= guard.wanted;
        drop(guard);
        if enough {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Rejects further writes. Queued writes are still taken.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.room.close();
        self.filled.notify_one();
    }

    /// Takes all queued writes within the bounds of a batch. Blocks the thread until there is a write, or until the deadline.
    pub fn take(&self, deadline: Option<Instant>) -> WakeReason {
        let mut guard = self.waiting.lock();
        guard.wanted = 1;
        while guard.writes.is_empty() {
            if guard.closed {
                return WakeReason::Closed;
            }
            match deadline {
                None => self.filled.wait(&mut guard),
                Some(deadline) => {
                    if self.filled.wait_until(&mut guard, deadline).timed_out() && guard.writes.is_empty() {
                        return WakeReason::Deadline;
                    }
                }
            }
        }
        self.wait_for_company(&mut guard);
        let mut batch = Vec::with_capacity(guard.writes.len().min(BATCH_WRITES_MAX));
        let mut bytes = 0;
        while let Some(next) = guard.writes.front() {
            bytes += next.write.cost();
            if !batch.is_empty() && (batch.len() >= BATCH_WRITES_MAX || bytes > BATCH_BYTES_MAX) {
                break;
            }
            batch.extend(guard.writes.pop_front());
        }
        WakeReason::Batch(batch)
    }

    /// Waits a short time until half of the announced writes are queued. The cost of a batch hardly depends on the number of its writes:
    /// it is the sync, the inner pages of the table, and waking every reader. The other half is prepared while this batch is stored.
    /// One or two writers never wait.
    fn wait_for_company(&self, guard: &mut MutexGuard<'_, Waiting>) {
        let wanted = (self.expected.load(Ordering::Relaxed) / 2).min(BATCH_WRITES_MAX);
        let until = Instant::now() + self.company;
        guard.wanted = wanted;
        while guard.writes.len() < wanted && !guard.closed {
            if self.filled.wait_until(guard, until).timed_out() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::key::{Key, Resource};
    use crate::write::Precondition;

    fn push(queue: &Queue) {
        let write = Write::delete(Key::new(Resource::parse("things"), "", "a"), Precondition::Any);
        let (reply, _) = oneshot::channel();
        let pushed = pin!(queue.push(write, reply)).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(pushed, Poll::Ready(Ok(()))), "there is room");
    }

    fn taken(queue: &Queue) -> usize {
        match queue.take(None) {
            WakeReason::Batch(batch) => batch.len(),
            WakeReason::Deadline | WakeReason::Closed => 0,
        }
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_batch_waits_for_half_of_what_is_on_its_way() {
        let queue = Queue::waiting_for(LONG);
        let expected: Vec<_> = (0..6).map(|_| queue.expect()).collect();
        push(&queue);
        std::thread::scope(|scope| {
            let batch = scope.spawn(|| taken(&queue));
            push(&queue);
            push(&queue);
            assert_eq!(batch.join().expect("no panic"), 3);
        });
        drop(expected);
        push(&queue);
        assert_eq!(taken(&queue), 1, "no other write is announced");
    }

    #[test]
    fn one_or_two_writers_do_not_wait_and_others_not_for_ever() {
        let queue = Queue::waiting_for(LONG);
        for writers in 1..=3 {
            let _expected: Vec<_> = (0..writers).map(|_| queue.expect()).collect();
            push(&queue);
            assert_eq!(taken(&queue), 1, "{writers} writers");
        }
        let queue = Queue::waiting_for(Duration::ZERO);
        let _expected: Vec<_> = (0..100).map(|_| queue.expect()).collect();
        push(&queue);
        assert_eq!(taken(&queue), 1, "the 99 other writes do not come");
    }

    #[test]
    fn a_batch_that_waits_is_taken_when_the_queue_closes() {
        let queue = Queue::waiting_for(LONG);
        let _expected: Vec<_> = (0..100).map(|_| queue.expect()).collect();
        push(&queue);
        std::thread::scope(|scope| {
            let batch = scope.spawn(|| taken(&queue));
            queue.close();
            assert_eq!(batch.join().expect("no panic"), 1);
        });
        assert!(matches!(queue.take(None), WakeReason::Closed));
    }
}
