//! A level with its requests: a running request holds [`Seats`], a waiting one is woken through its channel.
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::config::{Level, Shape};
use crate::counters::OfSchema;
use crate::demand::Demand;
use crate::queues::{Dispatched, QueuePosition, QueueSet, Reason, Running, Started};
use crate::retry::Refusals;
use crate::work::Work;

/// The maximum fraction of a level's seats that one request may take.
const REQUEST_PART: f64 = 0.15;

/// A waiting request, for dumps.
pub struct Waiter {
    report: oneshot::Sender<Running>,
    pub schema: Arc<str>,
    /// The string that distinguishes its flow from others of the schema.
    pub flow: Arc<str>,
    pub came: Instant,
    counted: Arc<OfSchema>,
    /// The details of the request, one field each (`dump_requests?includeRequestDetails`).
    pub details: [String; 8],
}

/// The bounds of a level's seats.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limits {
    /// The seats by the level's shares.
    pub nominal: u32,
    /// The seats that the level keeps when others borrow.
    pub min: u32,
    /// The seats that the level may have when it borrows.
    pub max: u32,
    /// The seats of the level until the next adjustment, between `min` and `max`.
    pub current: u32,
}

/// The mutable state of a level.
pub struct Inner {
    pub level: Level,
    pub queues: QueueSet<Waiter>,
    pub limits: Limits,
    pub demand: Demand,
    /// The target of the last adjustment.
    pub target: f64,
    refusals: Refusals,
    /// Whether the object was deleted. The level is removed when its last request has ended.
    pub unwanted: bool,
}

/// A priority level with its running and waiting requests. It hands out seats, keeps the fair queues, measures the
/// demand and wakes the waiting requests in the order of the queues. It is shared by all requests of the level and by
/// the adjustment of seats.
pub struct LevelState {
    pub name: String,
    pub inner: Mutex<Inner>,
    /// The maximum number of seats of one request; 0 means no limit.
    request_seats_max: AtomicU32,
    origin: Instant,
    tasks: Tasks,
}

/// A rejected request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The number of seconds after which the client may retry.
    pub retry_after_s: u64,
}

/// Holds seats until it is dropped. A write keeps its seats slightly longer where many watchers receive its event.
pub struct Seats {
    level: Arc<LevelState>,
    counted: Arc<OfSchema>,
    running: Option<Running>,
    seats: i64,
    begun: Instant,
    watch: bool,
}

impl Seats {
    fn new(level: &Arc<LevelState>, counted: &Arc<OfSchema>, running: Running, work: &Work) -> Self {
        let seats = i64::from(work.seats_max());
        counted.dispatched.inc();
        counted.running.inc();
        counted.seats_running.add(seats);
        let (level, counted) = (Arc::clone(level), Arc::clone(counted));
        Self { level, counted, running: Some(running), seats, begun: Instant::now(), watch: false }
    }

    /// Marks the seats as held by a watch during its start, for the metrics.
    pub fn of_watch(mut self) -> Self {
        self.watch = true;
        self
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        self.counted.running.dec();
        self.counted.seats_running.sub(self.seats);
        let took = self.begun.elapsed().as_secs_f64();
        if self.watch { &self.counted.watch_ran } else { &self.counted.ran }.observe(took);
        if let Some(running) = self.running.take() {
            self.level.finish(running);
        }
    }
}

/// The wait of a request for its turn. Dropping it leaves the queue.
pub struct Turn {
    level: Arc<LevelState>,
    counted: Arc<OfSchema>,
    work: Work,
    place: Option<QueuePosition>,
    reported: oneshot::Receiver<Running>,
    came: Instant,
}

impl Turn {
    /// Waits for the turn until the given time.
    ///
    /// # Errors
    /// Fails when the turn has not come.
    pub async fn come(mut self, until: Instant) -> Result<Seats, Refused> {
        let reported = tokio::time::timeout_at(until, &mut self.reported).await;
        let running = match reported {
            Ok(Ok(running)) => {
                self.leave_queue(true);
                Some(running)
            }
            // The queue keeps the sender while the request is in it.
            Ok(Err(_)) | Err(_) => self.give_up(true),
        };
        match running {
            Some(running) => Ok(Seats::new(&self.level, &self.counted, running, &self.work)),
            None => {
                self.counted.timed_out.inc();
                Err(self.level.refused())
            }
        }
    }

    fn leave_queue(&mut self, runs: bool) {
        if self.place.take().is_none() {
            return;
        }
        self.counted.waiting.dec();
        self.counted.seats_waiting.sub(i64::from(self.work.seats_max()));
        let waited = self.came.elapsed().as_secs_f64();
        if runs { &self.counted.waited_and_ran } else { &self.counted.waited_in_vain }.observe(waited);
    }

    /// Leaves the queue. Returns the seats if the turn came at the same moment.
    fn give_up(&mut self, timed_out: bool) -> Option<Running> {
        let place = self.place?;
        let left = self.level.inner.lock().queues.leave(self.level.now(), place, timed_out);
        self.leave_queue(!left);
        if left {
            // Requests behind it may have waited because it needed more seats than were free.
            self.level.dispatch();
            return None;
        }
        // The task that dequeued the request sends the outcome at once.
        self.reported.try_recv().ok()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.place.is_none() {
            return;
        }
        match self.give_up(false) {
            Some(running) => self.level.finish(running),
            None => self.counted.cancelled.inc(),
        }
    }
}

/// The outcome of a request's entry into the level.
pub enum Entered {
    Run(Seats),
    Wait(Turn),
    Refused(Refused),
}

impl LevelState {
    pub fn new(level: Level, limits: Limits, origin: Instant, tasks: &Tasks) -> Arc<Self> {
        Arc::new(Self {
            name: level.name.clone(),
            request_seats_max: AtomicU32::new(0),
            origin,
            tasks: tasks.clone(),
            inner: Mutex::new(Inner {
                queues: QueueSet::new(level.shape, limits.current, |first: &Waiter| first.counted.held_up.inc()),
                level,
                limits,
                demand: Demand::default(),
                target: 0.0,
                refusals: Refusals::default(),
                unwanted: false,
            }),
        })
    }

    /// Returns the time on the clock of the queues.
    pub fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Applies a new configuration.
    pub fn configure(self: &Arc<Self>, level: Level, limits: Limits, unwanted: bool) {
        let seats_max = match level.shape {
            Shape::Queue { hand, .. } => {
                let part = (f64::from(limits.nominal) * REQUEST_PART).ceil() as u32;
                part.min(limits.nominal / u32::try_from(hand).unwrap_or(u32::MAX)).max(1)
            }
            _ => 0,
        };
        self.request_seats_max.store(seats_max, Ordering::Relaxed);
        let dispatched = {
            let mut inner = self.inner.lock();
            let shape = level.shape;
            (inner.unwanted, inner.limits, inner.level) = (unwanted, limits, level);
            inner.queues.configure(self.now(), shape, limits.current)
        };
        self.report(dispatched);
    }

    /// Sets the current seats and the target.
    pub fn set_current(self: &Arc<Self>, current: u32, target: f64) {
        let dispatched = {
            let mut inner = self.inner.lock();
            (inner.limits.current, inner.target) = (current, target);
            let shape = inner.level.shape;
            inner.queues.configure(self.now(), shape, current)
        };
        self.report(dispatched);
    }

    /// Ends a measuring period and returns the demand.
    pub fn observe(&self) -> (Demand, Limits, Shape) {
        let mut inner = self.inner.lock();
        let observed = inner.queues.observe(self.now());
        inner.demand.update(observed);
        (inner.demand, inner.limits, inner.level.shape)
    }

    /// Returns the maximum number of seats of one request.
    pub fn request_seats_max(&self) -> Option<u32> {
        Some(self.request_seats_max.load(Ordering::Relaxed)).filter(|n| *n > 0)
    }

    /// Admits a request or queues it. `waiter` supplies its schema, flow and details, and is called only if it waits.
    pub fn enter(
        self: &Arc<Self>,
        counted: &Arc<OfSchema>,
        work: Work,
        hash: u64,
        waiter: impl FnOnce() -> (Arc<str>, Arc<str>, [String; 8]),
    ) -> Entered {
        counted.seats.observe(f64::from(work.seats_max()));
        let mut reported = None;
        let (started, dispatched) = {
            let mut inner = self.inner.lock();
            let started = inner.queues.start(self.now(), work, hash, || {
                let (report, receiver) = oneshot::channel();
                reported = Some(receiver);
                let (schema, flow, details) = waiter();
                Waiter { report, schema, flow, came: Instant::now(), counted: Arc::clone(counted), details }
            });
            let waits = matches!(started, Started::Wait(..));
            let dispatched = if waits { inner.queues.dispatch() } else { Vec::new() };
            (started, dispatched)
        };
        let entered = match (started, reported) {
            (Started::Run(running), _) => Entered::Run(Seats::new(self, counted, running, &work)),
            (Started::Wait(place, length), Some(reported)) => {
                counted.waiting.inc();
                counted.seats_waiting.add(i64::from(work.seats_max()));
                counted.queue_length.observe(length as f64);
                let (level, counted) = (Arc::clone(self), Arc::clone(counted));
                Entered::Wait(Turn { level, counted, work, place: Some(place), reported, came: Instant::now() })
            }
            (Started::Refused(Reason::QueueFull), _) => {
                counted.queue_full.inc();
                Entered::Refused(self.refused())
            }
            (Started::Refused(Reason::ConcurrencyLimit) | Started::Wait(..), _) => {
                counted.concurrency_limit.inc();
                Entered::Refused(self.refused())
            }
        };
        self.report(dispatched);
        entered
    }

    fn refused(&self) -> Refused {
        Refused { retry_after_s: self.inner.lock().refusals.note(self.now()) }
    }

    fn finish(self: &Arc<Self>, running: Running) {
        let (after, dispatched) = self.inner.lock().queues.finish(self.now(), running);
        self.report(dispatched);
        let Some(after) = after else { return };
        if tokio::runtime::Handle::try_current().is_err() {
            // The process is shutting down, so no request waits for these seats.
            return self.release(running);
        }
        let level = Arc::clone(self);
        self.tasks.spawn("flow-seats", OnPanic::Contain, async move {
            tokio::time::sleep(after).await;
            level.release(running);
        });
    }

    fn release(&self, running: Running) {
        let dispatched = self.inner.lock().queues.release(self.now(), running);
        self.report(dispatched);
    }

    fn dispatch(&self) {
        let dispatched = self.inner.lock().queues.dispatch();
        self.report(dispatched);
    }

    /// Wakes the requests that may run now. A request that was cancelled meanwhile returns its seats at once, as it
    /// never ran.
    fn report(&self, dispatched: Dispatched<Waiter>) {
        let mut all = dispatched;
        while let Some((waiter, running)) = all.pop() {
            let Err(running) = waiter.report.send(running) else { continue };
            let mut inner = self.inner.lock();
            let now = self.now();
            let (after, next) = inner.queues.finish(now, running);
            all.extend(next);
            if after.is_some() {
                all.extend(inner.queues.release(now, running));
            }
        }
    }
}
