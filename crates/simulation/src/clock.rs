//! The wall clock of a simulated cluster: it follows the paused one, and jumps when a test says so.
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};
use kelson_doubles::TokioClock;
use kelson_meta::Clock;

/// A clock that jumps. Copies are one clock.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    steady: TokioClock,
    /// Seconds that it is ahead; lives as long as the test's process, so that the clock can be copied.
    ahead_s: &'static AtomicI64,
}

impl WallClock {
    pub(crate) fn starting_at(start: Timestamp) -> Self {
        Self { steady: TokioClock::starting_at(start), ahead_s: Box::leak(Box::default()) }
    }

    /// It is so much later, or earlier, at once, as when a machine's clock is set.
    pub fn jump(&self, seconds: i64) {
        self.ahead_s.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        self.steady.now() + SignedDuration::from_secs(self.ahead_s.load(Ordering::SeqCst))
    }
}
