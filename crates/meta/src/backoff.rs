//! Exponential backoff: pauses between retries that double up to a maximum. All retries in Kelson use it.
use std::time::Duration;

/// An exponential backoff, defined by its first and its maximum pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure.
    pub base: Duration,
    /// The maximum pause.
    pub max: Duration,
}

impl Default for Backoff {
    /// The first delay is client-go's for controllers, 5 ms. The maximum is five minutes, where client-go has 1000 s.
    fn default() -> Self {
        Self::new(Duration::from_millis(5), Duration::from_secs(300))
    }
}

impl Backoff {
    /// Creates a backoff that starts at `base` and doubles up to `max`.
    pub const fn new(base: Duration, max: Duration) -> Self {
        Self { base, max }
    }

    /// Returns the pause after a failure that follows `failures` earlier ones (0 for the first failure).
    pub fn delay(&self, failures: u32) -> Duration {
        self.base.saturating_mul(1u32.checked_shl(failures).unwrap_or(u32::MAX)).min(self.max)
    }

    /// Returns the pause that follows the pause `last`. `None` gives the first pause.
    pub fn after(&self, last: Option<Duration>) -> Duration {
        last.map_or(self.base, |last| last.saturating_mul(2)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
        let mut last = None;
        for (failures, seconds) in [(0, 1), (1, 2), (2, 4), (3, 5), (4, 5)] {
            let pause = backoff.after(last);
            assert_eq!((pause.as_secs(), backoff.delay(failures).as_secs()), (seconds, seconds));
            last = Some(pause);
        }
        assert_eq!(backoff.delay(u32::MAX), backoff.max);
        assert_eq!(backoff.after(Some(Duration::MAX)), backoff.max);
    }
}
