//! One queue of a level, the unit of virtual time, and the state of queues for dumps.
use std::collections::VecDeque;
use std::time::Duration;

use crate::work::Work;

/// The assumed duration of a request until it has ended.
pub const GUESSED_TIME: Duration = Duration::from_millis(3);

/// An amount of service in seat-nanoseconds.
pub type SeatTime = i128;

pub fn seat_time(seats: u32, time: Duration) -> SeatTime {
    SeatTime::from(seats) * time.as_nanos() as SeatTime
}

pub fn whole(work: &Work) -> SeatTime {
    seat_time(work.seats, GUESSED_TIME) + seat_time(work.seats_after, work.after)
}

pub struct Waiting<P> {
    pub id: u64,
    pub came_at: SeatTime,
    pub work: Work,
    pub payload: P,
}

pub struct Queue<P> {
    pub waiting: VecDeque<Waiting<P>>,
    /// The work of the waiting requests.
    pub work_waiting: SeatTime,
    pub running: usize,
    pub seats: u32,
    pub next_at: SeatTime,
}

impl<P> Default for Queue<P> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), work_waiting: 0, running: 0, seats: 0, next_at: 0 }
    }
}

impl<P> Queue<P> {
    pub fn is_busy(&self) -> bool {
        self.running > 0 || !self.waiting.is_empty()
    }
    /// Limits how much a queue makes up for lost service to the waiting time of its oldest request.
    pub fn catch_up(&mut self) {
        if let Some(oldest) = self.waiting.front() {
            self.next_at = self.next_at.max(oldest.came_at);
        }
    }
}

/// Totals of the level since its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub dispatched: u64,
    pub rejected: u64,
    pub timed_out: u64,
    pub cancelled: u64,
}

/// The state of one queue for dumps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueueLook {
    pub waiting: usize,
    pub running: usize,
    pub seats: u32,
    pub next_at_s: f64,
    /// The seats that its requests need while they are served.
    pub first_seats_waiting: u32,
    /// The maximum number of seats that its requests need.
    pub seats_waiting: u32,
    pub work_waiting_s: f64,
}

/// The state of the queues when the last request left one to run, in seat-seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LastTurn {
    /// The common virtual time.
    pub progress_s: f64,
    /// The virtual time of its queue.
    pub next_at_s: f64,
    /// The minimum and the maximum virtual time of the queues with waiting requests.
    pub bounds_s: [f64; 2],
    /// The same without the assumed work in progress of each queue.
    pub discounted_s: [f64; 2],
}

pub fn bounds(all: impl Iterator<Item = f64>) -> [f64; 2] {
    all.fold([f64::INFINITY, f64::NEG_INFINITY], |[min, max], one| [min.min(one), max.max(one)])
}

pub fn seconds(time: SeatTime) -> f64 {
    time as f64 / 1e9
}
