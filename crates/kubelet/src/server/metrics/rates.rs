//! CPU usage in nanocores, from two readings of a CPU time counter.
use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Minimum interval of readings; over shorter ones the rate is too inexact.
const APART_MIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    nanos: u64,
    /// Last computed rate.
    rate: Option<u64>,
    /// Whether it was read since the last sweep.
    used: bool,
}

/// Last reading of each counter.
#[derive(Debug, Default)]
pub struct Rates(Mutex<HashMap<String, Reading>>);

impl Rates {
    /// Returns the rate of the counter `name`, whose value is now `nanos`; `None` at its first reading.
    pub fn of(&self, name: &str, nanos: u64) -> Option<u64> {
        let (mut all, now) = (self.0.lock(), Instant::now());
        let Some(last) = all.get_mut(name) else {
            all.insert(name.to_owned(), Reading { at: now, nanos, rate: None, used: true });
            return None;
        };
        last.used = true;
        let apart = now.duration_since(last.at);
        if apart >= APART_MIN {
            // A smaller value means that the name is used by a new counter.
            let grown = nanos.checked_sub(last.nanos);
            let rate = grown.and_then(|n| u64::try_from(u128::from(n) * 1_000_000_000 / apart.as_nanos()).ok());
            *last = Reading { at: now, nanos, rate, used: true };
        }
        last.rate
    }

    /// Removes counters that were not read since the last call.
    pub fn sweep(&self) {
        self.0.lock().retain(|_, reading| std::mem::replace(&mut reading.used, false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rates_need_readings_with_a_minimum_interval() {
        let rates = Rates::default();
        let second = Duration::from_secs(1);
        assert_eq!(rates.of("a", 100), None, "the first");
        tokio::time::advance(second / 10).await;
        assert_eq!(rates.of("a", 900), None, "too soon");
        tokio::time::advance(second * 2 - second / 10).await;
        assert_eq!(rates.of("a", 2100), Some(1000));
        assert_eq!(rates.of("a", 2200), Some(1000), "the last one known");
        tokio::time::advance(second).await;
        assert_eq!(rates.of("a", 50), None, "another counter of the name");
        rates.sweep();
        rates.sweep();
        tokio::time::advance(second).await;
        assert_eq!(rates.of("a", 5000), None, "it was forgotten");
    }
}
