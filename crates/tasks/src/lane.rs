//! Lanes for blocking work outside of the runtime's threads, with limited concurrency. Threads that serve requests
//! never wait for a disk, and a slow disk blocks at most its lane.
use std::cell::Cell;
use std::panic::AssertUnwindSafe;

use tokio::sync::Semaphore;

use crate::caught::{AnyResult, boxed_result, result_of};
use crate::stats::Watch;

/// The lane for file work of the process: reading, writing, removing trees, mounting. More concurrency does not help
/// with few cores and one disk, and a hanging network file system must not occupy every thread.
pub static FILES: Lane = Lane::new("files", 8);

thread_local! {
    static INLINE: Cell<bool> = const { Cell::new(false) };
}

/// Runs the work of lanes on this thread in its turn. Simulations on one thread use it, so that the order of events
/// does not depend on the speed of other threads.
pub fn block_inline_on_this_thread() {
    INLINE.set(true);
}

/// Returns whether lanes run their work on this thread.
pub(crate) fn runs_inline() -> bool {
    INLINE.get()
}

/// The reason why blocking work has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// The work panicked. The report names the lane.
    #[error("blocking work in lane {lane} panicked: {message}")]
    Panicked {
        /// The name of the lane.
        lane: &'static str,
        /// The message of the panic.
        message: String,
    },
    /// The runtime is shutting down and accepts no more work.
    #[error("the process is ending")]
    Ending,
}

/// A lane for blocking work, such as file access and system calls, which must not block the threads of the runtime. It
/// runs up to a fixed number of work items at once on blocking threads. Callers wait for their turn in the order in
/// which they came. Work that has begun completes even if its caller is cancelled.
#[derive(Debug)]
pub struct Lane {
    name: &'static str,
    room: Semaphore,
}

impl Lane {
    /// Creates a lane that runs up to `width` work items at once.
    pub const fn new(name: &'static str, width: usize) -> Self {
        Self { name, room: Semaphore::const_new(width) }
    }

    /// Runs `work` on a thread where it may block. Once started it completes, even if the caller is cancelled.
    ///
    /// # Errors
    /// See [`LaneError`].
    pub async fn run<T, W>(&'static self, work: W) -> Result<T, LaneError>
    where
        W: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let result = self.run_boxed(Box::new(move || Box::new(work()) as AnyResult)).await?;
        result_of(result).ok_or(LaneError::Ending)
    }

    /// The part of [`Lane::run`] that is compiled only once.
    async fn run_boxed(&'static self, work: Box<dyn FnOnce() -> AnyResult + Send>) -> Result<AnyResult, LaneError> {
        let turn = self.room.acquire().await.map_err(|_| LaneError::Ending)?;
        let watch = Watch::start(self.name);
        if INLINE.get() {
            let _turn = turn;
            let done = std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|payload| watch.panicked(&*payload));
            return done.map_err(|message| LaneError::Panicked { lane: self.name, message });
        }
        #[expect(clippy::disallowed_methods, reason = "the one place where blocking work is started")]
        let begun = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|payload| watch.panicked(&*payload))
        });
        match begun.await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(message)) => Err(LaneError::Panicked { lane: self.name, message }),
            Err(_) => Err(LaneError::Ending),
        }
    }

    /// Passes `work` to the lane without waiting, for a value that is being dropped. Work that has not started when
    /// the runtime ends is not done. Without a runtime, it is done at once.
    pub fn later<W>(&'static self, work: W)
    where
        W: FnOnce() + Send + 'static,
    {
        if INLINE.get() || tokio::runtime::Handle::try_current().is_err() {
            return work();
        }
        #[expect(clippy::disallowed_methods, reason = "it ends with its work, and the lane reports its panic")]
        drop(tokio::spawn(async move { self.run(work).await }));
    }

    /// Drives a future with long computations outside of the runtime's threads. It occupies its slot in the lane while
    /// it waits, too. Once started it completes, even if the caller is cancelled.
    ///
    /// # Errors
    /// See [`LaneError`].
    pub async fn drive<F>(&'static self, work: F) -> Result<F::Output, LaneError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        if INLINE.get() {
            let _turn = self.room.acquire().await.map_err(|_| LaneError::Ending)?;
            return Ok(work.await);
        }
        let runtime = tokio::runtime::Handle::current();
        let work = boxed_result(work);
        let result = self.run_boxed(Box::new(move || runtime.block_on(work))).await?;
        result_of(result).ok_or(LaneError::Ending)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn no_more_run_at_once_than_the_lane_is_wide() {
        static LANE: Lane = Lane::new("narrow", 2);
        static NOW: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let one = || async {
            LANE.run(|| {
                MOST.fetch_max(NOW.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(5));
                NOW.fetch_sub(1, Ordering::SeqCst);
            })
            .await
        };
        let all = tokio::join!(one(), one(), one(), one(), one());
        assert!(all.0.is_ok() && all.4.is_ok());
        assert_eq!(MOST.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_future_that_computes_is_driven_elsewhere() {
        static LANE: Lane = Lane::new("driven", 1);
        let here = std::thread::current().id();
        let work = async {
            tokio::task::yield_now().await;
            std::thread::current().id()
        };
        assert_ne!(LANE.drive(work).await, Ok(here));
    }

    #[tokio::test]
    async fn work_of_a_dropped_value_is_done_later_or_at_once_without_a_runtime() {
        static LANE: Lane = Lane::new("later", 1);
        let (done, wait) = tokio::sync::oneshot::channel();
        LANE.later(move || assert!(done.send(std::thread::current().id()).is_ok()));
        assert_ne!(wait.await, Ok(std::thread::current().id()));
        std::thread::spawn(|| {
            let (done, wait) = std::sync::mpsc::channel();
            LANE.later(move || assert!(done.send(std::thread::current().id()).is_ok()));
            assert_eq!(wait.try_recv(), Ok(std::thread::current().id()));
        })
        .join()
        .unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_frees_its_place() {
        static LANE: Lane = Lane::new("single", 1);
        let broken = LANE.run(|| panic!("bad block")).await;
        assert_eq!(broken, Err::<(), _>(LaneError::Panicked { lane: "single", message: "bad block".into() }));
        assert_eq!(LANE.run(|| 3).await, Ok(3));
    }
}
