//! Fair queuing of the requests of one level, as a state machine: it receives the time as an argument, and decides
//! which request runs next.
//!
//! Each queue has a virtual time at which its next request begins (`next_at`), and the level a common one (`progress`),
//! which advances as fast as each busy queue is served on average. The request that would end first in its queue's time
//! goes first, so that queues get equal service, by seats and time, whatever they hold (the doc of upstream's
//! `fairqueuing/queueset`). Times of queues are counted in seat-nanoseconds, whole, in a type that does not overflow in
//! the life of a machine.
mod queue;

use std::time::Duration;

use self::queue::{
    GUESSED_TIME, LastTurn, Queue, QueueLook, SeatTime, Totals, Waiting, bounds, seat_time, seconds, whole,
};
use crate::config::Shape;
use crate::demand::{Integrator, Observed};
use crate::shuffle::Dealer;
use crate::utilization::LevelUse;
use crate::work::Work;

/// A request that holds seats.
#[derive(Debug, Clone, Copy)]
pub struct Running {
    queue: Option<usize>,
    work: Work,
    begun: Duration,
}

/// The position of a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePosition {
    queue: usize,
    id: u64,
}

/// The reason for an immediate rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The queue of the request is full.
    QueueFull,
    /// All seats are taken, and the level has no queues.
    ConcurrencyLimit,
}

/// The outcome of a request's start.
pub enum Started {
    /// The request runs at once.
    Run(Running),
    /// The request waits behind this number of others in its queue.
    Wait(QueuePosition, usize),
    /// The request is rejected.
    Refused(Reason),
}

/// The requests that run now, each with the handle to wake its task.
pub type Dispatched<P> = Vec<(P, Running)>;

/// The fair queues of a level, with the requests that wait in them and the seats that running requests hold. It
/// decides by virtual time which request runs next. It has no clock and no locks: the caller passes in the time and
/// owns the synchronization.
pub struct QueueSet<P> {
    shape: Shape,
    limit: u32,
    dealer: Option<Dealer>,
    queues: Vec<Queue<P>>,
    busy: usize,
    progress: SeatTime,
    now: Duration,
    /// The queue that was served last.
    last: usize,
    waiting: usize,
    running: usize,
    seats: u32,
    seats_waiting: u32,
    begun: u64,
    demand: Integrator,
    /// Called with the first request in line whenever it needs more seats than are free.
    held_up: fn(&P),
    /// Measurements taken when a request last left its queue to run.
    pub last_turn: LastTurn,
    pub used: LevelUse,
    pub totals: Totals,
}

impl<P> QueueSet<P> {
    /// Creates queues without requests. `limit` is the number of seats; `held_up` is called with the first request in
    /// line each time that it needs more seats than are free.
    pub fn new(shape: Shape, limit: u32, held_up: fn(&P)) -> Self {
        let mut set = Self {
            shape,
            limit,
            dealer: None,
            queues: Vec::new(),
            busy: 0,
            progress: 0,
            now: Duration::ZERO,
            last: 0,
            waiting: 0,
            running: 0,
            seats: 0,
            seats_waiting: 0,
            begun: 0,
            demand: Integrator::default(),
            held_up,
            last_turn: LastTurn::default(),
            used: LevelUse::new(),
            totals: Totals::default(),
        };
        set.shape(shape);
        set.measure(Duration::ZERO);
        set
    }

    /// Changes the queues and the number of seats. Requests in removed queues stay there until they run.
    pub fn configure(&mut self, now: Duration, shape: Shape, limit: u32) -> Dispatched<P> {
        self.advance(now);
        self.limit = limit;
        if shape != self.shape {
            self.shape(shape);
        }
        self.measure(now);
        self.dispatch()
    }

    /// Updates the utilization after the seats in use or the limit have changed.
    fn measure(&mut self, now: Duration) {
        self.used.of(now, self.limit, self.places());
    }

    /// Returns the maximum number of waiting requests.
    pub fn places(&self) -> usize {
        if let Shape::Queue { queues, length_max, .. } = self.shape { queues.saturating_mul(length_max) } else { 0 }
    }

    fn shape(&mut self, shape: Shape) {
        self.shape = shape;
        self.dealer = None;
        if let Shape::Queue { queues, hand, .. } = shape {
            self.dealer = Dealer::new(queues, hand);
            while self.queues.len() < queues {
                self.queues.push(Queue::default());
            }
        }
        self.drop_unused_queues();
    }

    fn drop_unused_queues(&mut self) {
        let wanted = if let Shape::Queue { queues, .. } = self.shape { queues } else { 0 };
        while self.queues.len() > wanted && self.queues.last().is_some_and(|q| !q.is_busy() && q.seats == 0) {
            self.queues.pop();
        }
        self.last = self.last.min(self.queues.len().saturating_sub(1));
    }

    /// Starts or queues a request of the flow with this hash. `payload` is called only if the request waits.
    pub fn start(&mut self, now: Duration, work: Work, hash: u64, payload: impl FnOnce() -> P) -> Started {
        self.advance(now);
        let (Shape::Queue { length_max, .. }, Some(dealer)) = (self.shape, self.dealer) else {
            if !self.fits(work.seats_max()) {
                self.totals.rejected += 1;
                return Started::Refused(Reason::ConcurrencyLimit);
            }
            return Started::Run(self.run(None, work));
        };
        let at = self.shortest(dealer, hash);
        let progress = self.progress;
        if self.waiting == 0 && self.seats < self.limit && self.fits(work.seats_max()) {
            // The queue is empty, so no request is ahead of it.
            let queue = &mut self.queues[at];
            queue.next_at = if queue.is_busy() { queue.next_at.max(progress) } else { progress };
            return Started::Run(self.run(Some(at), work));
        }
        let ahead = self.queues[at].waiting.len();
        if self.seats >= self.limit && ahead >= length_max {
            self.totals.rejected += 1;
            return Started::Refused(Reason::QueueFull);
        }
        self.begun += 1;
        let id = self.begun;
        let queue = &mut self.queues[at];
        if !queue.is_busy() {
            queue.next_at = progress;
            self.busy += 1;
        }
        queue.waiting.push_back(Waiting { id, came_at: progress, work, payload: payload() });
        queue.work_waiting += whole(&work);
        queue.catch_up();
        self.waiting += 1;
        self.seats_waiting += work.seats_max();
        self.note();
        Started::Wait(QueuePosition { queue: at, id }, ahead + 1)
    }

    /// Dequeues the requests for which there are seats. Call it after a request was queued.
    pub fn dispatch(&mut self) -> Dispatched<P> {
        let mut all = Vec::new();
        while self.waiting > 0 && self.seats < self.limit {
            let Some(next) = self.next() else { break };
            all.push(next);
        }
        all
    }

    /// Records that a request was answered. If it continues to hold seats, the first value is `Some` with the duration,
    /// and [`QueueSet::release`] must follow.
    pub fn finish(&mut self, now: Duration, done: Running) -> (Option<Duration>, Dispatched<P>) {
        self.advance(now);
        self.running -= 1;
        if let Some(at) = done.queue {
            let took = now.saturating_sub(done.begun).as_nanos() as SeatTime - GUESSED_TIME.as_nanos() as SeatTime;
            let queue = &mut self.queues[at];
            queue.running -= 1;
            queue.next_at += SeatTime::from(done.work.seats) * took;
            queue.catch_up();
            if !queue.is_busy() {
                self.busy -= 1;
            }
        }
        match done.work.after {
            Duration::ZERO => (None, self.free(done)),
            after => {
                self.note();
                (Some(after), self.dispatch())
            }
        }
    }

    /// Returns the seats of an answered request.
    pub fn release(&mut self, now: Duration, done: Running) -> Dispatched<P> {
        self.advance(now);
        self.free(done)
    }

    fn free(&mut self, done: Running) -> Dispatched<P> {
        let seats = done.work.seats_max();
        self.seats -= seats;
        if let Some(at) = done.queue {
            self.queues[at].seats -= seats;
            self.drop_unused_queues();
        }
        self.note();
        self.dispatch()
    }

    /// Removes a waiting request. Returns whether it was still waiting. `timed_out` distinguishes a timeout from a
    /// disconnected client.
    pub fn leave(&mut self, now: Duration, place: QueuePosition, timed_out: bool) -> bool {
        self.advance(now);
        let Some(queue) = self.queues.get_mut(place.queue) else { return false };
        let Some(at) = queue.waiting.iter().position(|w| w.id == place.id) else { return false };
        let Some(left) = queue.waiting.remove(at) else { return false };
        queue.work_waiting -= whole(&left.work);
        queue.catch_up();
        if !queue.is_busy() {
            self.busy -= 1;
        }
        self.waiting -= 1;
        self.seats_waiting -= left.work.seats_max();
        self.totals.rejected += 1;
        if timed_out {
            self.totals.timed_out += 1;
        } else {
            self.totals.cancelled += 1;
        }
        self.note();
        self.drop_unused_queues();
        true
    }

    /// Returns whether no request waits or runs.
    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.running == 0 && self.seats == 0
    }

    /// Returns the waiting requests, running requests, seats in use and seats that waiting requests need.
    pub fn counts(&self) -> (usize, usize, u32, u32) {
        (self.waiting, self.running, self.seats, self.seats_waiting)
    }

    /// Returns the common virtual time of the queues in seat-seconds.
    pub fn progress_s(&self) -> f64 {
        seconds(self.progress)
    }

    /// Returns statistics of the demand since the last call.
    pub fn observe(&mut self, now: Duration) -> Observed {
        self.demand.reset(now)
    }

    /// Returns the state of each queue in order.
    pub fn look(&self) -> impl Iterator<Item = QueueLook> {
        self.queues.iter().map(|q| QueueLook {
            waiting: q.waiting.len(),
            running: q.running,
            seats: q.seats,
            next_at_s: seconds(q.next_at),
            first_seats_waiting: q.waiting.iter().map(|w| w.work.seats).sum(),
            seats_waiting: q.waiting.iter().map(|w| w.work.seats_max()).sum(),
            work_waiting_s: seconds(q.work_waiting),
        })
    }

    /// Returns the waiting requests: queue, position, work and payload.
    pub fn look_waiting(&self) -> impl Iterator<Item = (usize, usize, &Work, &P)> {
        let of_queue = |(at, queue)| -> Box<dyn Iterator<Item = (usize, usize, &Work, &P)> + '_> {
            let queue: &Queue<P> = queue;
            Box::new(queue.waiting.iter().enumerate().map(move |(i, w)| (at, i, &w.work, &w.payload)))
        };
        self.queues.iter().enumerate().flat_map(of_queue)
    }

    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        if self.busy > 0 {
            let served = (self.seats + self.seats_waiting).min(self.limit);
            self.progress += seat_time(served, passed) / self.busy as SeatTime;
        }
    }

    fn note(&mut self) {
        let (now, wanted) = (self.now, f64::from(self.seats + self.seats_waiting));
        self.demand.set(now, wanted);
        self.used.demand.set(now, wanted);
        self.used.seats.set(now, self.seats.into());
        self.used.waiting.set(now, self.waiting as f64);
        self.used.running.set(now, self.running as f64);
    }

    /// Returns whether enough seats are free. A request that needs more seats than exist runs alone.
    fn fits(&self, seats: u32) -> bool {
        match self.shape {
            Shape::Exempt => true,
            _ if seats > self.limit => self.running == 0,
            _ => self.seats + seats <= self.limit,
        }
    }

    /// Returns the queue with the least work in the flow's hand.
    fn shortest(&self, dealer: Dealer, hash: u64) -> usize {
        let hand = dealer.deal(hash);
        // Ties are broken round-robin instead of always for the same queue.
        let skip = (self.begun.wrapping_add(self.totals.dispatched) % hand.len() as u64) as usize;
        let from_turn = hand.clone().skip(skip).chain(hand.take(skip));
        from_turn.min_by_key(|at| self.queues[*at].work_waiting).unwrap_or(0)
    }

    fn run(&mut self, queue: Option<usize>, work: Work) -> Running {
        let seats = work.seats_max();
        if let Some(at) = queue {
            let queue = &mut self.queues[at];
            if !queue.is_busy() {
                self.busy += 1;
            }
            queue.running += 1;
            queue.seats += seats;
            queue.next_at += whole(&work);
            queue.catch_up();
        }
        self.running += 1;
        self.seats += seats;
        self.totals.dispatched += 1;
        self.note();
        Running { queue, work, begun: self.now }
    }

    fn turn(&self, at: usize) -> LastTurn {
        let waiting = || self.queues.iter().filter(|q| !q.waiting.is_empty());
        LastTurn {
            progress_s: seconds(self.progress),
            next_at_s: seconds(self.queues[at].next_at),
            bounds_s: bounds(waiting().map(|q| seconds(q.next_at))),
            discounted_s: bounds(waiting().map(|q| seconds(q.next_at - seat_time(q.seats, GUESSED_TIME)))),
        }
    }

    /// Dequeues the next request in order, if there are seats for it; no later request overtakes it.
    fn next(&mut self) -> Option<(P, Running)> {
        let n = self.queues.len();
        let order = (1..=n).map(|i| (self.last + i) % n);
        let ends_at = |at: usize| {
            let queue = &self.queues[at];
            queue.waiting.front().map(|w| queue.next_at + whole(&w.work))
        };
        let (_, at) = order.filter_map(|at| Some((ends_at(at)?, at))).min_by_key(|(end, _)| *end)?;
        let first = self.queues[at].waiting.front()?;
        let seats = first.work.seats_max();
        if !self.fits(seats) {
            (self.held_up)(&first.payload);
            return None;
        }
        self.last = at;
        self.last_turn = self.turn(at);
        let queue = &mut self.queues[at];
        let first = queue.waiting.pop_front()?;
        queue.work_waiting -= whole(&first.work);
        self.waiting -= 1;
        self.seats_waiting -= seats;
        // The queue was busy only because of the request that leaves it to run.
        if !queue.is_busy() {
            self.busy -= 1;
        }
        let running = self.run(Some(at), first.work);
        Some((first.payload, running))
    }
}

#[cfg(test)]
mod tests;
