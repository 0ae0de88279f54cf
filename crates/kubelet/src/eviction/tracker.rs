//! State of thresholds: which are met, since when, and the resulting node conditions. Pure; the time is an input (upstream:
//! `pkg/kubelet/eviction/helpers.go`).
use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::thresholds::{Pressure, Signal, Threshold};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    Memory,
    Disk,
    Pid,
}

fn condition(signal: Signal) -> Condition {
    match signal {
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => Condition::Memory,
        Signal::PidAvailable => Condition::Pid,
        _ => Condition::Disk,
    }
}

/// Returns whether the signal is below the threshold; if `reclaims`, below the threshold plus its minimum reclaim.
fn met(threshold: &Threshold, seen: &Observation, reclaims: bool) -> bool {
    let extra = threshold.min_reclaim.filter(|_| reclaims).map_or(0, |m| m.of(seen.capacity));
    seen.available < threshold.value.of(seen.capacity).saturating_add(extra)
}

/// Measurement of one signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Amount that is available.
    pub available: u64,
    /// Capacity of the resource.
    pub capacity: u64,
}

/// Measurements of all signals at one time.
pub type Observations = BTreeMap<Signal, Observation>;

/// State of earlier measurements.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    /// Indices of the thresholds that caused evictions at the last measurement.
    met: Vec<usize>,
    first_met: BTreeMap<usize, Instant>,
    condition_seen: BTreeMap<Condition, Instant>,
}

impl Tracker {
    /// Processes a measurement. Returns the thresholds that are met and whose grace period has passed, memory first.
    pub fn look(
        &mut self,
        thresholds: &[Threshold],
        transition: Duration,
        seen: &Observations,
        now: Instant,
    ) -> Vec<Threshold> {
        let met: Vec<usize> = (0..thresholds.len())
            .filter(|i| {
                let t = &thresholds[*i];
                seen.get(&t.signal).is_some_and(|o| met(t, o, self.met.contains(i)))
            })
            .collect();
        self.first_met.retain(|i, _| met.contains(i));
        for i in &met {
            self.first_met.entry(*i).or_insert(now);
            self.condition_seen.insert(condition(thresholds[*i].signal), now);
        }
        // A condition stays for the transition period after it was last observed, so that it does not flap.
        self.condition_seen.retain(|_, at| now.duration_since(*at) < transition || *at == now);
        let due = |i: &usize| now.duration_since(self.first_met[i]) >= thresholds[*i].grace;
        self.met = met.into_iter().filter(due).collect();
        let mut out: Vec<Threshold> = self.met.iter().map(|i| thresholds[*i]).collect();
        out.sort_by_key(|t| !matches!(t.signal, Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable));
        out
    }

    /// Returns the current node conditions.
    pub fn pressure(&self) -> Pressure {
        let has = |c: Condition| self.condition_seen.contains_key(&c);
        Pressure { memory: has(Condition::Memory), disk: has(Condition::Disk), pid: has(Condition::Pid) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::config::thresholds::{Amount, DEFAULT_HARD};

    fn at(seconds: u64) -> Instant {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        *BEGAN + Duration::from_secs(seconds)
    }
    fn memory(mib: u64) -> Observations {
        let o = Observation { available: mib << 20, capacity: 1000 << 20 };
        Observations::from([(Signal::MemoryAvailable, o)])
    }

    #[test]
    fn hard_at_once_and_conditions_stay_for_the_transition_period() {
        let mut t = Tracker::default();
        let transition = Duration::from_secs(300);
        assert!(t.look(DEFAULT_HARD, transition, &memory(100), at(0)).is_empty());
        assert_eq!(t.pressure(), Pressure::default());
        assert_eq!(t.look(DEFAULT_HARD, transition, &memory(99), at(10)).len(), 1);
        assert!(t.pressure().memory && !t.pressure().disk);
        assert!(t.look(DEFAULT_HARD, transition, &memory(500), at(20)).is_empty());
        assert!(t.pressure().memory);
        t.look(DEFAULT_HARD, transition, &memory(500), at(309));
        assert!(t.pressure().memory);
        t.look(DEFAULT_HARD, transition, &memory(500), at(310));
        assert!(!t.pressure().memory);
    }

    #[test]
    fn soft_thresholds_wait_and_minimum_reclaim_applies() {
        let soft = [Threshold {
            signal: Signal::MemoryAvailable,
            value: Amount::Percent(20.0),
            grace: Duration::from_secs(60),
            min_reclaim: Some(Amount::Absolute(100 << 20)),
        }];
        let mut t = Tracker::default();
        let mut met = |mib: u64, s: u64| t.look(&soft, Duration::ZERO, &memory(mib), at(s)).len();
        assert_eq!(met(199, 0), 0);
        assert_eq!(met(250, 30), 0, "it recovered before its grace passed, so the grace period starts again");
        assert_eq!(met(199, 40), 0);
        assert_eq!(met(199, 99), 0);
        assert_eq!(met(199, 100), 1);
        assert_eq!(met(299, 110), 1, "not yet reclaimed enough");
        assert_eq!(met(300, 120), 0);
    }

    #[test]
    fn memory_comes_first() {
        let low = Observation { available: 0, capacity: 100 };
        let seen = Observations::from([(Signal::NodeFsAvailable, low), (Signal::MemoryAvailable, low)]);
        let mut reversed = DEFAULT_HARD.to_vec();
        reversed.reverse();
        let met = Tracker::default().look(&reversed, Duration::ZERO, &seen, at(0));
        assert_eq!(met.iter().map(|t| t.signal.name()).collect::<Vec<_>>(), ["memory.available", "nodefs.available"]);
    }
}
