//! Renewal of a pod's volumes before a token in them expires. Expiry is a time of the wall clock, which may be changed. After a change
//! backwards, the current token would be kept too long, and the server rejects tokens from its future.
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// Interval at which the clocks are compared.
const LOOK: Duration = Duration::from_secs(60);
/// Minimum difference that counts as a change. Adjustments by NTP are smaller.
const JUMP_MIN: Duration = Duration::from_secs(30);

/// The next renewal, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Renewal {
    due: Instant,
    /// Both clocks when the renewal was scheduled.
    set: (Instant, Timestamp),
    /// When the clocks are compared next.
    look: Instant,
}

impl Renewal {
    /// Schedules a renewal after `wait`; `wall` is the current time of the wall clock.
    pub(super) fn after(wait: Duration, wall: Timestamp) -> Self {
        let now = Instant::now();
        let due = now.checked_add(wait).unwrap_or(now);
        Self { due, set: (now, wall), look: due.min(now + LOOK) }
    }

    /// Schedules the renewal of something that is valid until `at`; `wall` is the current time of the wall clock.
    pub(super) fn of(at: Timestamp, wall: Timestamp) -> Self {
        Self::after(Duration::try_from(at.duration_since(wall)).unwrap_or_default(), wall)
    }

    /// Returns when to call [`Self::is_due`] next.
    pub(super) fn look_at(&self) -> Instant {
        self.look
    }

    /// Returns whether the time has come or the wall clock was changed since. Otherwise schedules the next comparison of the clocks.
    pub(super) fn is_due(&mut self, now: Instant, wall: Timestamp) -> bool {
        let passed =
            jiff::SignedDuration::try_from(now.duration_since(self.set.0)).unwrap_or(jiff::SignedDuration::MAX);
        let ahead = wall.duration_since(self.set.1).saturating_sub(passed);
        self.look = self.due.min(now + LOOK);
        now >= self.due || ahead.unsigned_abs() >= JUMP_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_renewal_is_due_in_time_and_when_the_wall_clock_was_set() {
        let wall = |s: i64| Timestamp::from_second(1_000_000 + s).expect("a time");
        for (passed, shown, due) in
            [(3000, 3000, true), (2999, 2999, false), (2999, 2989, false), (60, 3600, true), (60, -3540, true)]
        {
            let mut r = Renewal::after(Duration::from_secs(3000), wall(0));
            let now = Instant::now() + Duration::from_secs(passed);
            assert_eq!(r.is_due(now, wall(shown)), due, "after {passed} s the wall clock has gone {shown} s on");
            assert!(r.look_at() <= now + LOOK);
        }
    }
}
