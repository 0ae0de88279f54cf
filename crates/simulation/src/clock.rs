//! The wall clock of a simulated cluster: it follows the paused one, and tests can make it jump.
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};
use kelson_doubles::TokioClock;
use kelson_meta::Clock;

/// A clock that can jump. Copies share its state.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    steady: TokioClock,
    /// The number of seconds it is ahead; lives as long as the test's process, so that the clock can be copied.
    ahead_s: &'static AtomicI64,
}

impl WallClock {
    pub(crate) fn starting_at(start: Timestamp) -> Self {
        Self { steady: TokioClock::starting_at(start), ahead_s: Box::leak(Box::default()) }
    }

    /// Moves the clock by this number of seconds, as when a machine's clock is set.
    pub fn jump(&self, seconds: i64) {
        self.ahead_s.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        self.steady.now() + SignedDuration::from_secs(self.ahead_s.load(Ordering::SeqCst))
    }
}
