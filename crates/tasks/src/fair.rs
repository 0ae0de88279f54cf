//! A lane that users share fairly. Long computations run on separate threads, a few at a time. Users take turns
//! regardless of how much work each of them has, and some slots are reserved for system users on which all others
//! depend.
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::lane::{LaneError, runs_inline};
use crate::stats::Watch;

/// The maximum number of waiting work items of one user.
const WAITING_OF_USER_MAX: usize = 100;
/// The maximum number of waiting work items of all users.
const WAITING_MAX: usize = 1_000;

/// The user on whose behalf work is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turns {
    /// A system user. Such work may use all slots, including the reserved ones, and goes first.
    Reserved,
    /// An ordinary user, who gets one slot at a time in turn with other users.
    Of(Arc<str>),
}

/// The reason why work in a [`FairLane`] has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FairError {
    /// Too many work items are waiting.
    #[error("lane {0} is full")]
    Full(&'static str),
    /// The lane failed.
    #[error(transparent)]
    Lane(#[from] LaneError),
}

/// A lane with fair sharing between users.
#[derive(Debug)]
pub struct FairLane {
    name: &'static str,
    queues: Mutex<Queues>,
    begun: AtomicU64,
}

impl FairLane {
    /// Returns a lane with `width` concurrent slots for all users, and `reserve` more for system users.
    pub fn new(name: &'static str, width: usize, reserve: usize) -> Arc<Self> {
        let queues = Mutex::new(Queues { width, reserve, ..Queues::default() });
        Arc::new(Self { name, queues, begun: AtomicU64::new(0) })
    }

    /// Returns the number of work items that have ever started.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Drives a future outside of the runtime's threads. It occupies a slot while it computes and releases it while it
    /// waits. Started work has priority over work that has not started. It is cancelled with its caller.
    ///
    /// # Errors
    /// See [`FairError`].
    pub async fn drive<F>(self: &Arc<Self>, turns: Turns, work: F) -> Result<F::Output, FairError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let mut work = Box::pin(work);
        let mut place = self.place(&turns, Step::First).await?;
        self.begun.fetch_add(1, Ordering::Relaxed);
        let watch = Arc::new(Watch::start(self.name));
        let woken = Arc::new(LaneWaker::default());
        loop {
            let (waker, watch) = (Waker::from(Arc::clone(&woken)), Arc::clone(&watch));
            let polled = if runs_inline() {
                let polled = poll_fn(|_| Poll::Ready(step(&mut work, &waker))).await;
                drop(place);
                polled
            } else {
                #[expect(clippy::disallowed_methods, reason = "it ends with its step, whose panic is reported below")]
                let begun = tokio::task::spawn_blocking(move || {
                    let polled = step(&mut work, &waker);
                    drop(place);
                    (work, polled)
                });
                let (back, polled) = begun.await.map_err(|_| LaneError::Ending)?;
                work = back;
                polled
            };
            match polled {
                Ok(Poll::Ready(result)) => return Ok(result),
                Ok(Poll::Pending) => woken.0.notified().await,
                Err(payload) => {
                    let message = watch.panicked(&*payload);
                    return Err(LaneError::Panicked { lane: self.name, message }.into());
                }
            }
            place = self.place(&turns, Step::Later).await?;
        }
    }

    async fn place(self: &Arc<Self>, turns: &Turns, step: Step) -> Result<LaneSlot, FairError> {
        let called = {
            let mut queues = self.queues.lock();
            if queues.takes(turns) {
                return Ok(LaneSlot::new(self, turns.clone()));
            }
            if step == Step::First && queues.is_full_for(turns) {
                return Err(FairError::Full(self.name));
            }
            queues.wait(turns, step)
        };
        called.await.map_err(|_| LaneError::Ending.into())
    }

    /// Wakes the waiters that may run now.
    fn call(self: &Arc<Self>) {
        loop {
            let Some((turns, waiter)) = self.queues.lock().next() else { return };
            // The slot of a caller that was cancelled meanwhile is returned and passed to the next one.
            if let Err(mut unused) = waiter.send(LaneSlot::new(self, turns.clone())) {
                unused.lane = None;
                self.queues.lock().leave(&turns);
            }
        }
    }
}

type Polled<T> = Result<Poll<T>, Box<dyn std::any::Any + Send>>;

fn step<F: Future>(work: &mut std::pin::Pin<Box<F>>, waker: &Waker) -> Polled<F::Output> {
    catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut Context::from_waker(waker))))
}

#[derive(Default)]
struct LaneWaker(Notify);

impl Wake for LaneWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Whether work starts or continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    First,
    Later,
}

/// A slot of the lane, which is released when it is dropped.
#[derive(Debug)]
struct LaneSlot {
    lane: Option<Arc<FairLane>>,
    turns: Turns,
}

impl LaneSlot {
    fn new(lane: &Arc<FairLane>, turns: Turns) -> Self {
        Self { lane: Some(Arc::clone(lane)), turns }
    }
}

impl Drop for LaneSlot {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            lane.queues.lock().leave(&self.turns);
            lane.call();
        }
    }
}

type Waiter = oneshot::Sender<LaneSlot>;

/// The running and waiting work.
#[derive(Debug, Default)]
struct Queues {
    width: usize,
    reserve: usize,
    running: usize,
    /// The users with a slot.
    users: Vec<Arc<str>>,
    reserved: VecDeque<Waiter>,
    /// The work that has started.
    later: VecDeque<(Arc<str>, Waiter)>,
    first: HashMap<Arc<str>, VecDeque<Waiter>>,
    /// The users in `first`. The next user to run is at the front.
    order: VecDeque<Arc<str>>,
    waiting: usize,
}

impl Queues {
    /// Takes a slot if one is free and no work waits for it.
    fn takes(&mut self, turns: &Turns) -> bool {
        let free = match turns {
            Turns::Reserved => self.reserved.is_empty() && self.running < self.width + self.reserve,
            Turns::Of(user) => self.is_free_for(user),
        };
        if free {
            self.enter(turns);
        }
        free
    }

    fn is_free_for(&self, user: &Arc<str>) -> bool {
        self.users.len() < self.width && self.running < self.width + self.reserve && !self.users.contains(user)
    }

    fn enter(&mut self, turns: &Turns) {
        self.running += 1;
        if let Turns::Of(user) = turns {
            self.users.push(Arc::clone(user));
        }
    }

    fn leave(&mut self, turns: &Turns) {
        self.running -= 1;
        if let Turns::Of(user) = turns
            && let Some(at) = self.users.iter().position(|u| u == user)
        {
            self.users.swap_remove(at);
        }
    }

    fn is_full_for(&self, turns: &Turns) -> bool {
        let Turns::Of(user) = turns else { return false };
        let own = self.first.get(user).map_or(0, VecDeque::len);
        own >= WAITING_OF_USER_MAX || self.waiting >= WAITING_MAX
    }

    fn wait(&mut self, turns: &Turns, step: Step) -> oneshot::Receiver<LaneSlot> {
        let (waiter, called) = oneshot::channel();
        match (turns, step) {
            (Turns::Reserved, _) => self.reserved.push_back(waiter),
            (Turns::Of(user), Step::Later) => self.later.push_back((Arc::clone(user), waiter)),
            (Turns::Of(user), Step::First) => {
                self.waiting += 1;
                let own = self.first.entry(Arc::clone(user)).or_default();
                if own.is_empty() {
                    self.order.push_back(Arc::clone(user));
                }
                own.push_back(waiter);
            }
        }
        called
    }

    /// Returns the next waiter and takes a slot for it.
    fn next(&mut self) -> Option<(Turns, Waiter)> {
        if self.running >= self.width + self.reserve {
            return None;
        }
        while let Some(waiter) = self.reserved.pop_front() {
            if !waiter.is_closed() {
                self.enter(&Turns::Reserved);
                return Some((Turns::Reserved, waiter));
            }
        }
        self.later.retain(|(_, waiter)| !waiter.is_closed());
        let goes_on = self.later.iter().position(|(user, _)| self.is_free_for(user));
        let (user, waiter) = match goes_on.and_then(|at| self.later.remove(at)) {
            Some(found) => found,
            None => self.next_first()?,
        };
        let turns = Turns::Of(user);
        self.enter(&turns);
        Some((turns, waiter))
    }

    /// Returns the first work item of the next user, and moves the user to the end.
    fn next_first(&mut self) -> Option<(Arc<str>, Waiter)> {
        let mut at = 0;
        while at < self.order.len() {
            let user = Arc::clone(&self.order[at]);
            if !self.is_free_for(&user) {
                at += 1;
                continue;
            }
            self.order.remove(at);
            let own = self.first.get_mut(&user)?;
            let before = own.len();
            let mut found = None;
            while let Some(waiter) = own.pop_front() {
                if !waiter.is_closed() {
                    found = Some(waiter);
                    break;
                }
            }
            self.waiting -= before - own.len();
            if own.is_empty() {
                self.first.remove(&user);
            } else {
                self.order.push_back(Arc::clone(&user));
            }
            if let Some(waiter) = found {
                return Some((user, waiter));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(user: &str) -> Turns {
        Turns::Of(user.into())
    }

    /// Returns the order in which work runs when each item ends before the next one starts.
    fn called(queues: &mut Queues) -> Vec<String> {
        let mut names = Vec::new();
        while let Some((turns, _)) = queues.next() {
            queues.leave(&turns);
            names.push(match turns {
                Turns::Reserved => "reserved".to_owned(),
                Turns::Of(user) => user.to_string(),
            });
        }
        names
    }

    #[test]
    fn users_take_turns_and_what_has_begun_goes_first() {
        let mut queues = Queues { width: 2, reserve: 1, ..Queues::default() };
        let mut calls = Vec::new();
        for (who, step) in [
            (of("hostile"), Step::First),
            (of("hostile"), Step::First),
            (of("hostile"), Step::First),
            (of("a"), Step::First),
            (of("b"), Step::First),
            (of("a"), Step::First),
            (of("b"), Step::Later),
            (Turns::Reserved, Step::First),
        ] {
            calls.push(queues.wait(&who, step));
        }
        drop(calls.remove(0));
        let order = called(&mut queues);
        assert_eq!(order, ["reserved", "b", "hostile", "a", "b", "hostile", "a"]);
        assert_eq!((queues.waiting, queues.running, queues.first.len(), queues.order.len()), (0, 0, 0, 0));
    }

    #[test]
    fn a_user_has_one_place_and_the_reserve_is_kept() {
        let mut queues = Queues { width: 2, reserve: 1, ..Queues::default() };
        assert!(queues.takes(&of("a")) && !queues.takes(&of("a")));
        assert!(queues.takes(&of("b")) && !queues.takes(&of("c")));
        assert!(queues.takes(&Turns::Reserved) && !queues.takes(&Turns::Reserved));
        queues.leave(&Turns::Reserved);
        assert!(!queues.takes(&of("c")), "the reserve is not theirs");
        queues.leave(&of("a"));
        assert!(queues.takes(&of("c")));
        queues.leave(&of("b"));
        assert!(queues.takes(&Turns::Reserved) && queues.takes(&Turns::Reserved), "all places are theirs");
    }

    #[test]
    fn one_user_does_not_fill_the_queue() {
        let mut queues = Queues { width: 0, reserve: 0, ..Queues::default() };
        let waiting: Vec<_> = (0..WAITING_OF_USER_MAX).map(|_| queues.wait(&of("a"), Step::First)).collect();
        assert!(queues.is_full_for(&of("a")) && !queues.is_full_for(&of("b")) && !queues.is_full_for(&Turns::Reserved));
        drop(waiting);
        queues.width = 1;
        assert!(queues.next().is_none(), "nobody is there any more");
        assert_eq!((queues.waiting, queues.order.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_place_is_free_while_its_work_waits() {
        let lane = FairLane::new("fair", 1, 0);
        let (go, wait) = oneshot::channel::<u32>();
        let here = std::thread::current().id();
        let of_one = Arc::clone(&lane);
        let first = tokio::spawn(async move { of_one.drive(of("a"), wait).await });
        while lane.queues.lock().running > 0 || lane.begun() == 0 {
            tokio::task::yield_now().await;
        }
        let other = lane.drive(of("b"), async { std::thread::current().id() }).await;
        assert!(other.is_ok_and(|thread| thread != here), "the lane is free, and has threads of its own");
        go.send(7).unwrap();
        assert_eq!(first.await.unwrap(), Ok(Ok(7)));
        let broken = lane.drive(of("a"), async { panic!("bad") }).await;
        let panicked = LaneError::Panicked { lane: "fair", message: "bad".into() };
        assert_eq!(broken, Err::<(), _>(panicked.into()));
        assert_eq!(lane.queues.lock().running, 0);
    }
}
