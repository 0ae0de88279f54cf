//! Utilization histograms over time. Upstream takes a sample at the end of every nanosecond, so the count of a bucket
//! is the number of nanoseconds during which the utilization was in it.
use std::time::Duration;

use kelson_metrics::Family;

/// Buckets for the utilization of seats. Those near one show saturation.
const OF_SEATS: &[f64] = &[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
/// Buckets for the ratio of requests: far fewer run than there are seats and positions in queues.
const OF_REQUESTS: &[f64] = &[0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0];
/// Buckets for the ratio of requests by kind.
const OF_KINDS: &[f64] = &[0.0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
/// Buckets for the demand for seats, which may exceed their number.
const OF_DEMAND: &[f64] = &[0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];

/// The ratio of an amount to a whole, both of which change over time.
#[derive(Debug)]
pub struct Utilization {
    bounds: &'static [f64],
    /// The nanoseconds in each bucket. The last bucket has no limit.
    nanos: Vec<u64>,
    /// The sum of the ratios, weighted by nanoseconds.
    sum: f64,
    used: f64,
    whole: f64,
    bucket: usize,
    last: Duration,
}

impl Utilization {
    /// Creates the histogram of an unused whole.
    fn new(bounds: &'static [f64], now: Duration) -> Self {
        Self { bounds, nanos: vec![0; bounds.len() + 1], sum: 0.0, used: 0.0, whole: 1.0, bucket: 0, last: now }
    }

    /// Creates the histogram of requests by kind, for a server's reads and writes.
    pub fn of_kinds(now: Duration) -> Self {
        Self::new(OF_KINDS, now)
    }

    fn part(&self) -> f64 {
        self.used / self.whole
    }

    fn advance(&mut self, now: Duration) {
        let nanos = u64::try_from(now.saturating_sub(self.last).as_nanos()).unwrap_or(u64::MAX);
        self.last = self.last.max(now);
        self.nanos[self.bucket] = self.nanos[self.bucket].saturating_add(nanos);
        self.sum += self.part() * nanos as f64;
    }

    /// Sets the amount in use from `now` on.
    pub fn set(&mut self, now: Duration, used: f64) {
        if used != self.used {
            self.change(now, used, self.whole);
        }
    }

    /// Sets the whole from `now` on; the ratio to a whole of zero counts as one.
    pub fn of(&mut self, now: Duration, whole: f64) {
        self.change(now, self.used, whole.max(1.0));
    }

    fn change(&mut self, now: Duration, used: f64, whole: f64) {
        self.advance(now);
        (self.used, self.whole) = (used, whole);
        let part = self.part();
        self.bucket = self.bounds.iter().position(|bound| part <= *bound).unwrap_or(self.bounds.len());
    }

    /// Exports the histogram up to `now`.
    pub fn show(&mut self, now: Duration, family: &mut Family<'_>, labels: &[(&str, &str)]) {
        self.advance(now);
        let buckets = self.bounds.iter().copied().zip(self.nanos.iter().copied());
        let above = self.nanos[self.bounds.len()];
        family.distribution(labels, buckets, above, self.sum);
    }
}

/// The utilization of a level's seats.
#[derive(Debug)]
pub struct LevelUse {
    /// The seats in use, relative to all seats.
    pub seats: Utilization,
    /// The waiting requests, relative to the maximum.
    pub waiting: Utilization,
    /// The running requests, relative to the seats.
    pub running: Utilization,
    /// The seats that are in use or waited for, relative to all seats.
    pub demand: Utilization,
}

impl LevelUse {
    /// Creates the utilization of an idle level.
    pub fn new() -> Self {
        let [seats, waiting, running, demand] =
            [OF_SEATS, OF_REQUESTS, OF_REQUESTS, OF_DEMAND].map(|bounds| Utilization::new(bounds, Duration::ZERO));
        Self { seats, waiting, running, demand }
    }

    /// Sets the number of seats and queue positions of the level.
    pub fn of(&mut self, now: Duration, seats: u32, places: usize) {
        for part in [&mut self.seats, &mut self.running, &mut self.demand] {
            part.of(now, seats.into());
        }
        self.waiting.of(now, places as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_metrics::Families;

    #[test]
    fn time_is_counted_where_the_part_was() {
        let ns = Duration::from_nanos;
        let mut used = Utilization::new(&[0.0, 0.5, 1.0], ns(100));
        used.of(ns(100), 4.0);
        used.set(ns(110), 1.0);
        used.set(ns(130), 4.0);
        used.of(ns(160), 2.0);
        used.set(ns(200), 0.0);
        let mut families = Families::default();
        used.show(ns(205), &mut families.histogram("x", "X."), &[("a", "b")]);
        let text = families.text();
        // The level is idle for 15 ns, used to a quarter for 20, fully for 30, and twice for 40.
        for line in [
            "x_bucket{a=\"b\",le=\"0\"} 15",
            "x_bucket{a=\"b\",le=\"0.5\"} 35",
            "x_bucket{a=\"b\",le=\"1\"} 65",
            "x_bucket{a=\"b\",le=\"+Inf\"} 105",
            "x_count{a=\"b\"} 105",
            "x_sum{a=\"b\"} 115",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
