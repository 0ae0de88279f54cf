//! Pauses between tries that double up to a longest one: the one rule for everything that is tried again.
use std::time::Duration;

/// The first and the longest pause of a series of tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure.
    pub base: Duration,
    /// No pause is longer.
    pub max: Duration,
}

impl Default for Backoff {
    /// client-go's first delay for controllers, 5 ms; its longest is 1000 s, ours five minutes.
    fn default() -> Self {
        Self::new(Duration::from_millis(5), Duration::from_secs(300))
    }
}

impl Backoff {
    /// From `base` on, doubling, up to `max`.
    pub const fn new(base: Duration, max: Duration) -> Self {
        Self { base, max }
    }

    /// The pause after `failures` failures before this one (0: the first).
    pub fn delay(&self, failures: u32) -> Duration {
        self.base.saturating_mul(1u32.checked_shl(failures).unwrap_or(u32::MAX)).min(self.max)
    }

    /// The pause that follows the pause `last`; `None`: the first.
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
