//! The demand of a level for seats: in the period between two adjustments, and smoothed over many periods.
use std::time::Duration;

/// The smoothing factor by which a past demand fades.
const SMOOTHING: f64 = 0.977;

/// The integral of a number over time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Integrator {
    begun: Duration,
    last: Duration,
    value: f64,
    max: f64,
    /// The integrals of the value and of its square over seconds.
    sum: f64,
    squares: f64,
}

/// Statistics of a number over a period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observed {
    pub period: Duration,
    pub average: f64,
    pub deviation: f64,
    pub max: f64,
}

impl Integrator {
    /// Sets the number to `value` from `now` on.
    pub fn set(&mut self, now: Duration, value: f64) {
        self.advance(now);
        self.value = value;
        self.max = self.max.max(value);
    }

    fn advance(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.last).as_secs_f64();
        self.last = self.last.max(now);
        self.sum += self.value * seconds;
        self.squares += self.value * self.value * seconds;
    }

    /// Ends a period, starts the next, and returns the statistics of the old one.
    pub fn reset(&mut self, now: Duration) -> Observed {
        self.advance(now);
        let period = now.saturating_sub(self.begun);
        let seconds = period.as_secs_f64();
        let average = if seconds > 0.0 { self.sum / seconds } else { self.value };
        let variance = if seconds > 0.0 { self.squares / seconds - average * average } else { 0.0 };
        let observed = Observed { period, average, deviation: variance.max(0.0).sqrt(), max: self.max };
        *self = Self { begun: now, last: now, value: self.value, max: self.value, sum: 0.0, squares: 0.0 };
        observed
    }
}

/// The demand of a level for seats.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Demand {
    pub average: f64,
    pub deviation: f64,
    /// The maximum in the last period.
    pub high: u32,
    /// The smoothed demand, which rises at once and falls slowly.
    pub smoothed: f64,
}

impl Demand {
    pub fn update(&mut self, observed: Observed) {
        self.high = observed.max.round() as u32;
        if observed.period.is_zero() {
            return;
        }
        (self.average, self.deviation) = (observed.average, observed.deviation);
        let envelope = observed.average + observed.deviation;
        self.smoothed = envelope.max(SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * envelope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn averages_are_weighted_by_time() {
        let mut demand = Integrator::default();
        demand.set(s(0), 4.0);
        demand.set(s(5), 0.0);
        let observed = demand.reset(s(10));
        assert_eq!(observed, Observed { period: s(10), average: 2.0, deviation: 2.0, max: 4.0 });
        assert_eq!(demand.reset(s(20)), Observed { period: s(10), average: 0.0, deviation: 0.0, max: 0.0 });
    }

    #[test]
    fn a_demand_jumps_up_and_sinks_slowly() {
        let mut demand = Demand::default();
        let of = |average| Observed { period: s(10), average, deviation: 0.0, max: average };
        demand.update(of(100.0));
        assert_eq!((demand.smoothed, demand.high), (100.0, 100));
        demand.update(of(0.0));
        assert!((demand.smoothed - 97.7).abs() < 1e-9, "{}", demand.smoothed);
        demand.update(of(200.0));
        assert_eq!(demand.smoothed, 200.0);
    }
}
