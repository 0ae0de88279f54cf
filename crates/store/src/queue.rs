//! The bounded queue between writers and the committer's thread. Writers wait asynchronously for room; the thread
//! takes all that is there at once, and waits a moment for those that are about to come.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::error::StoreError;
use crate::limits::{BATCH_BYTES_MAX, BATCH_WRITES_MAX, COMPANY_WAIT_MAX_US, QUEUE_WRITES_MAX};
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

/// A write that is being prepared: it will come into the queue soon, or not at all.
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
    /// How many writes the committer's thread wants to be woken up for.
    wanted: usize,
}

pub(crate) struct Queue {
    room: Arc<Semaphore>,
    waiting: Mutex<Waiting>,
    filled: Condvar,
    /// Writes that are being prepared, waiting or being answered.
    expected: Arc<AtomicUsize>,
    /// How long a batch may wait for more.
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

    /// Says that somebody prepares a write, until what is returned is dropped.
    pub fn expect(&self) -> ExpectedWrite {
        self.expected.fetch_add(1, Ordering::Relaxed);
        ExpectedWrite(Arc::clone(&self.expected))
    }

    /// Adds a write, waiting for room; after this returns, the write will happen whether or not anybody waits for it.
    pub async fn push(&self, write: Write, reply: Reply) -> Result<(), StoreError> {
        let room = Arc::clone(&self.room).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let mut guard = self.waiting.lock();
        if guard.closed {
            return Err(StoreError::Closed);
        }
        guard.writes.push_back(Pending { write, reply, _room: Some(room) });
        // A thread that waits for more than this is not woken up to find that out.
        let enough = guard.writes.len() >= guard.wanted;
        drop(guard);
        if enough {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Refuses further writes; those waiting are still taken.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
        self.room.close();
        self.filled.notify_one();
    }

    /// Everything that waits, within the bounds of a batch; blocks the thread until there is something.
    pub fn take(&self, deadline: Option<Instant>) -> Taken {
        let mut guard = self.waiting.lock();
        guard.wanted = 1;
        while guard.writes.is_empty() {
            if guard.closed {
                return Taken::Closed;
            }
            match deadline {
                None => self.filled.wait(&mut guard),
                Some(deadline) => {
                    if self.filled.wait_until(&mut guard, deadline).timed_out() && guard.writes.is_empty() {
                        return Taken::Deadline;
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
        Taken::Batch(batch)
    }

    /// What a batch costs is nearly the same however many writes share it: the sync, the pages of the table above the rows, and
    /// waking up every reader. So it waits, not for long, until half of the writes that are on their way are there; the other half
    /// is prepared while it is stored. One or two writers never wait.
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
            Taken::Batch(batch) => batch.len(),
            Taken::Deadline | Taken::Closed => 0,
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
        assert_eq!(taken(&queue), 1, "nobody else is on the way");
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
        assert_eq!(taken(&queue), 1, "99 do not come");
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
        assert!(matches!(queue.take(None), Taken::Closed));
    }
}
