//! How often and when pulls are tried: a token bucket for the node, and a growing wait per pod and image. Both by the steady
//! clock: one that is set back keeps no pull waiting.
use std::collections::HashMap;
use std::time::Duration;

use kelson_meta::Backoff;
use tokio::time::Instant;

use crate::plugin::cache::later;

/// First wait after a failed pull.
pub const BACKOFF_MIN: Duration = Duration::from_secs(10);
/// Longest wait after failed pulls.
pub const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Failed pulls remembered.
pub const BACKOFFS_MAX: usize = 10_000;

/// Lets `qps` pulls through per second, and `burst` at once.
#[derive(Debug)]
pub(super) struct Bucket {
    qps: f64,
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// `None`: zero queries per second means no limit.
    pub fn new(qps: f64, burst: u32, now: Instant) -> Option<Self> {
        let burst = f64::from(burst);
        (qps > 0.0).then_some(Self { qps, burst, tokens: burst, at: now })
    }

    pub fn try_take(&mut self, now: Instant) -> bool {
        let passed = now.duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.qps).min(self.burst);
        self.at = now;
        let fine = self.tokens >= 1.0;
        if fine {
            self.tokens -= 1.0;
        }
        fine
    }
}

/// Waits after failures, and what they were.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    entries: HashMap<String, LimitEntry>,
}

#[derive(Debug)]
struct LimitEntry {
    delay: Duration,
    updated: Instant,
    cause: String,
}

impl BackOff {
    /// Until when `key` waits, and why; `None`: it may be tried.
    pub fn waits(&self, key: &str, now: Instant) -> Option<(Instant, &str)> {
        let e = self.entries.get(key)?;
        let until = later(e.updated, e.delay);
        (now < until).then_some((until, e.cause.as_str()))
    }

    /// Notes a failure of `key`: the next try must wait, twice as long as after the one before.
    pub fn failed(&mut self, key: &str, now: Instant, cause: String) {
        self.purge(now);
        let delay = Backoff::new(BACKOFF_MIN, BACKOFF_MAX).after(self.entries.get(key).map(|e| e.delay));
        if self.entries.len() >= BACKOFFS_MAX && !self.entries.contains_key(key) {
            self.entries.clear();
        }
        self.entries.insert(key.to_owned(), LimitEntry { delay, updated: now, cause });
    }

    /// Forgets the failures of `key`, which has succeeded.
    pub fn forget(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// Forgets images without a failure for twice the maximum wait.
    fn purge(&mut self, now: Instant) {
        self.entries.retain(|_, e| now <= later(e.updated, BACKOFF_MAX * 2));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    fn at(ms: u64) -> Instant {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        *BEGAN + Duration::from_millis(ms)
    }

    #[test]
    fn bucket() {
        let mut b = Bucket::new(2.0, 3, at(0)).unwrap();
        assert_eq!((0..4).map(|_| b.try_take(at(0))).collect::<Vec<_>>(), [true, true, true, false]);
        assert!(!b.try_take(at(400)) && b.try_take(at(500)) && !b.try_take(at(600)) && b.try_take(at(1000)));
        assert_eq!((0..4).map(|_| b.try_take(at(60_000))).filter(|t| *t).count(), 3);
        assert!(Bucket::new(0.0, 3, at(0)).is_none());
    }

    #[test]
    fn doubling_and_forgetting() {
        let mut b = BackOff::default();
        let mut now = 0;
        for want in [10, 20, 40, 80, 160, 300, 300] {
            b.failed("k", at(now), "why".into());
            assert_eq!(b.waits("k", at(now)), Some((at(now + want * 1000), "why")));
            now += want * 1000;
            assert_eq!(b.waits("k", at(now)), None);
        }
        b.failed("k", at(now + 600_001), "why".into());
        assert!(b.waits("k", at(now + 600_001 + 10_000)).is_none());
        b.forget("k");
        assert!(b.waits("k", at(now + 600_001)).is_none());
    }
}
