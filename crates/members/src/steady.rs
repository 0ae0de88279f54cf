//! Whether a member and its network were steady in the last ten minutes, so that shorter timeouts are safe. Pure.
//!
//! A follower starts an election when it gets no heartbeat in time. On a fast network the reason is the leader: etcd sends no
//! heartbeat while it waits for its disk or for a CPU.

use std::collections::VecDeque;
use std::time::Duration;

use crate::space::{Buckets, FSYNC_MAX, p99};

/// The looks in a window, one every 30 seconds.
const LOOKS: usize = 20;
/// Late heartbeats in a window of a steady leader, of at least 6000 to each follower.
const LATE_MAX: f64 = 10.0;
/// The share of the round trips in percent that are below the one that counts: single ones are longer on a busy machine.
const ROUND_TRIPS_PERCENT: usize = 90;

/// Counters of etcd at one look.
struct Counters {
    fsyncs: Buckets,
    late: f64,
}

/// The measures of the last looks.
#[derive(Default)]
pub(crate) struct Window {
    counters: VecDeque<Counters>,
    round_trips: VecDeque<Duration>,
}

impl Window {
    /// Adds etcd's counters since its start: the durations of syncs, and the heartbeats that it has sent late.
    pub fn add_counters(&mut self, fsyncs: &Buckets, late: f64) {
        let total = |fsyncs: &Buckets| fsyncs.get(&u64::MAX).copied().unwrap_or(0.0);
        if self.counters.back().is_some_and(|last| total(fsyncs) < total(&last.fsyncs) || late < last.late) {
            // Etcd was restarted.
            self.counters.clear();
        }
        self.counters.push_back(Counters { fsyncs: fsyncs.clone(), late });
        // One more than intervals.
        if self.counters.len() > LOOKS + 1 {
            self.counters.pop_front();
        }
    }

    /// Adds the longest round trip to another member.
    pub fn add_round_trip(&mut self, round_trip: Duration) {
        self.round_trips.push_back(round_trip);
        if self.round_trips.len() > LOOKS {
            self.round_trips.pop_front();
        }
    }

    /// Returns the round trip that counts; `None` before the first one.
    pub fn round_trip(&self) -> Option<Duration> {
        let mut sorted: Vec<Duration> = self.round_trips.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get((sorted.len() * ROUND_TRIPS_PERCENT / 100).min(sorted.len().saturating_sub(1))).copied()
    }

    /// Reports whether the round trips of a whole window are there.
    pub fn is_full(&self) -> bool {
        self.round_trips.len() == LOOKS
    }

    /// Reports whether this member's disk is fast and its heartbeats were in time; `None` while that is not known.
    pub fn is_steady(&self) -> Option<bool> {
        let (first, last) = (self.counters.front()?, self.counters.back()?);
        let p99 = p99(&first.fsyncs, &last.fsyncs);
        if last.late - first.late > LATE_MAX || p99.is_some_and(|p99| p99 > FSYNC_MAX) {
            return Some(false);
        }
        (self.counters.len() > LOOKS && p99.is_some()).then_some(true)
    }
}

/// Reports whether all voters are steady: no, if one is not; `None` if that of one is not known.
pub(crate) fn are_all_steady(voters: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    let mut all = Some(true);
    for voter in voters {
        match voter {
            Some(false) => return Some(false),
            None => all = None,
            Some(true) => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns a histogram with so many syncs of at most 8 ms, and more of at most 32 ms.
    fn fsyncs(fast: u32, slow: u32) -> Buckets {
        Buckets::from([(8 * MS, fast.into()), (32 * MS, (fast + slow).into()), (u64::MAX, (fast + slow).into())])
    }

    fn window(looks: u32, slow: u32, late: f64) -> Window {
        let mut window = Window::default();
        for look in 0..looks {
            window.add_counters(&fsyncs(look * 50, look * slow), f64::from(look) * late);
        }
        window
    }

    #[test]
    fn a_member_is_steady_after_ten_minutes_without_a_slow_disk_or_late_heartbeats() {
        assert_eq!(window(0, 0, 0.0).is_steady(), None);
        assert_eq!(window(20, 0, 0.0).is_steady(), None, "the window is not full");
        assert_eq!(window(21, 0, 0.0).is_steady(), Some(true));
        assert_eq!(window(40, 0, 0.5).is_steady(), Some(true), "ten late heartbeats in a window");
        assert_eq!(window(12, 0, 1.0).is_steady(), Some(false), "eleven of them");
        assert_eq!(window(4, 1, 0.0).is_steady(), Some(false), "the slow disk is known before the window is full");
        assert_eq!(window(2, 1, 0.0).is_steady(), None, "too few syncs");
    }

    #[test]
    fn what_a_member_did_before_the_window_or_its_restart_does_not_count() {
        let mut window = window(21, 5, 3.0);
        assert_eq!(window.is_steady(), Some(false));
        window.add_counters(&fsyncs(0, 0), 0.0);
        assert_eq!(window.is_steady(), None, "etcd was restarted");
        for look in 1..=40 {
            // Slow in the beginning only.
            window.add_counters(&fsyncs(look * 50, look.min(10) * 5), 0.0);
        }
        assert_eq!(window.is_steady(), Some(true));
    }

    #[test]
    fn single_long_round_trips_do_not_count() {
        let mut window = Window::default();
        assert_eq!(window.round_trip(), None);
        let ms = Duration::from_millis;
        window.add_round_trip(ms(7));
        assert_eq!(window.round_trip(), Some(ms(7)));
        for look in 0..30 {
            window.add_round_trip(ms(if look % 20 == 0 { 90 } else { 1 }));
        }
        assert_eq!((window.round_trip(), window.is_full()), (Some(ms(1)), true));
        for _ in 0..3 {
            window.add_round_trip(ms(4));
        }
        assert_eq!(window.round_trip(), Some(ms(4)), "three of twenty");
    }

    #[test]
    fn all_voters_must_be_steady() {
        for (voters, want) in [
            (&[Some(true), Some(true)][..], Some(true)),
            (&[Some(true), None], None),
            (&[None, Some(false)], Some(false)),
            (&[Some(false), Some(true)], Some(false)),
        ] {
            assert_eq!(are_all_steady(voters.iter().copied()), want, "{voters:?}");
        }
    }
}
