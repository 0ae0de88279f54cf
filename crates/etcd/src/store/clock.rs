//! Time since the store was opened, which leases use.

use std::time::Duration;

use tokio::time::Instant;

#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn now(self) -> Duration {
        self.0.elapsed()
    }

    /// Returns the instant of a time.
    pub fn at(self, time: Duration) -> Instant {
        // A lease may have a TTL of three hundred years, which overflows some clocks.
        const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
        self.0 + time.min(self.now() + FAR)
    }
}
