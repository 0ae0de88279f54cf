//! Histograms of disk latencies, for etcd's alerts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of bounds of etcd's disk histograms: a millisecond, doubled thirteen times.
const BUCKETS: usize = 14;
const FIRST_BOUND_S: f64 = 0.001;

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Durations {
    at_most: [AtomicU64; BUCKETS],
    above: AtomicU64,
    nanos: AtomicU64,
}

impl Durations {
    pub(super) fn took(&self, time: Duration) {
        let within = bounds().position(|bound| time.as_secs_f64() <= bound);
        within.and_then(|at| self.at_most.get(at)).unwrap_or(&self.above).fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns each bound in seconds, with the number of durations above the previous bound and up to this one.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        bounds().zip(self.at_most.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Returns the number of durations above all bounds.
    pub fn above(&self) -> u64 {
        self.above.load(Ordering::Relaxed)
    }

    /// Returns the sum of all durations in seconds.
    pub fn sum_s(&self) -> f64 {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed)).as_secs_f64()
    }
}

fn bounds() -> impl Iterator<Item = f64> {
    std::iter::successors(Some(FIRST_BOUND_S), |bound| Some(bound * 2.0)).take(BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_counted_once() {
        let durations = Durations::default();
        for ms in [0, 1, 2, 3, 8192, 8193] {
            durations.took(Duration::from_millis(ms));
        }
        let counts: Vec<u64> = durations.buckets().map(|(_, count)| count).collect();
        assert_eq!(counts, [2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(durations.above(), 1);
        assert!((durations.sum_s() - 16.391).abs() < 1e-9, "{}", durations.sum_s());
    }
}
