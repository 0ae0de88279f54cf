//! Restart back-off of containers: 10 s, doubling up to 300 s, reset after a run of twice the maximum (upstream: client-go
//! `flowcontrol.Backoff` as the kubelet uses it). It uses the monotonic clock, so changes of the wall clock have no effect.
use std::collections::HashMap;
use std::time::Duration;

use kelson_meta::Backoff;
use tokio::time::Instant;

/// Delay after the first failure.
pub const INITIAL: Duration = Duration::from_secs(10);
/// Default maximum of the delay.
pub const MAX: Duration = Duration::from_secs(300);

/// Back-off delays by key: containers of one pod, or images of a node.
#[derive(Clone, Debug)]
pub struct BackOff {
    delays: Backoff,
    entries: HashMap<String, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    delay: Duration,
    updated: Instant,
}

impl Default for BackOff {
    fn default() -> Self {
        Self::new(INITIAL, MAX)
    }
}

impl BackOff {
    /// Creates restart delays with the maximum `max` (KEP-4603).
    pub fn of_restarts(max: Duration) -> Self {
        Self::new(INITIAL.min(max), max)
    }

    /// Creates delays that start at `initial` and double up to `max`.
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self { delays: Backoff::new(initial, max), entries: HashMap::new() }
    }

    /// Returns when `key` may start again and the delay, counted from `ended`, the end of its last run. `None`: it may start now.
    pub fn waits(&self, key: &str, ended: Instant, now: Instant) -> Option<(Instant, Duration)> {
        let entry = self.entries.get(key)?;
        if self.expired(entry, ended) {
            return None;
        }
        let until = ended + entry.delay;
        (now < until).then_some((until, entry.delay))
    }

    /// Records that `key` starts again after its last run ended at `ended`; the next delay is longer.
    pub fn next(&mut self, key: &str, ended: Instant, now: Instant) {
        let last = self.entries.get(key).filter(|e| !self.expired(e, ended));
        let delay = self.delays.after(last.map(|e| e.delay));
        self.entries.insert(key.to_owned(), Entry { delay, updated: now });
    }

    /// Returns when `key` may start again, counted from its last [`Self::next`]. For operations without a run, such as an image pull.
    pub fn waits_since_update(&self, key: &str, now: Instant) -> Option<Instant> {
        let entry = self.entries.get(key)?;
        let until = entry.updated + entry.delay;
        (now < until).then_some(until)
    }

    /// Resets the delay of a key.
    pub fn reset(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// Removes expired entries, so that the table contains only recent failures.
    pub fn purge(&mut self, now: Instant) {
        let max = self.delays.max;
        self.entries.retain(|_, e| now.duration_since(e.updated) <= max * 2);
    }

    fn expired(&self, entry: &Entry, event: Instant) -> bool {
        event.duration_since(entry.updated) > self.delays.max * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_the_limit_and_is_forgotten() {
        let mut b = BackOff::default();
        let mut now = Instant::now();
        assert_eq!(b.waits("a", now, now), None, "the first restart is at once");
        for want in [10u64, 20, 40, 80, 160, 300, 300] {
            b.next("a", now, now);
            now += Duration::from_secs(1);
            let (until, delay) = b.waits("a", now, now).expect("waits");
            assert_eq!(delay.as_secs(), want);
            assert_eq!(until, now + Duration::from_secs(want));
            now = until;
            assert_eq!(b.waits("a", now - delay, now), None);
        }
        let mut short = BackOff::of_restarts(Duration::from_secs(3));
        short.next("a", now, now);
        assert_eq!(short.waits("a", now, now).expect("waits").1.as_secs(), 3, "no longer than the node allows");
        let later = now + Duration::from_secs(601);
        assert_eq!(b.waits("a", later, later), None);
        b.next("a", later, later);
        assert_eq!(b.waits("a", later, later).expect("waits").1.as_secs(), 10);
    }
}
