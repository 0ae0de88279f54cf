//! How long certificates live and when they are renewed.
use std::time::Duration;

use jiff::Timestamp;

/// Certificates begin this long before they are made: clocks of joining machines differ.
pub const BACKDATE: Duration = Duration::from_secs(5 * 60);
/// The lifetime of CAs.
pub const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Of everything else, unless asked for less.
pub const LEAF_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// When a certificate must be renewed: at a random point between 70 and 90 % of its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Not good before.
    pub begins: Timestamp,
    /// Renew from here on.
    pub due: Timestamp,
    /// Useless from here on.
    pub expires: Timestamp,
}

impl Renewal {
    /// Computes it for a certificate valid between these times; `jitter` in 0..=1 chooses the point between 70 % and 90
    /// %.
    pub fn plan(not_before: Timestamp, not_after: Timestamp, jitter: f64) -> Self {
        let life = not_after.duration_since(not_before).as_secs().max(0) as f64;
        let at = life * 0.2f64.mul_add(jitter.clamp(0.0, 1.0), 0.7);
        let due = not_before.checked_add(Duration::from_secs(at.round() as u64)).unwrap_or(not_after);
        Self { begins: not_before, due, expires: not_after }
    }
    /// The same with a random point.
    pub fn random(not_before: Timestamp, not_after: Timestamp) -> Self {
        Self::plan(not_before, not_after, rand::random())
    }
    /// Whether it should be replaced at once: it is due, or the clock was set back before its beginning.
    pub fn is_due(&self, now: Timestamp) -> bool {
        now < self.begins || self.due <= now
    }
    /// Time to wait from `now` (zero when due).
    pub fn wait(&self, now: Timestamp) -> Duration {
        Duration::try_from(self.due.duration_since(now)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_seventy_and_ninety() {
        let t = |s| Timestamp::from_second(s).unwrap();
        assert_eq!(Renewal::plan(t(0), t(1000), 0.0).due, t(700));
        assert_eq!(Renewal::plan(t(0), t(1000), 1.0).due, t(900));
        let r = Renewal::plan(t(0), t(1000), 0.5);
        assert_eq!(r.wait(t(300)), Duration::from_secs(500));
        assert_eq!(r.wait(t(3000)), Duration::ZERO);
        let r = Renewal::plan(t(100), t(1100), 0.5);
        assert_eq!([99, 100, 899, 900, 5000].map(|s| r.is_due(t(s))), [true, false, false, true, true]);
    }
}
