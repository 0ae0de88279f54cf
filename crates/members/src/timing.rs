//! Heartbeat interval and election timeout of a member, from measured round trips. Pure.
//!
//! etcd's rules (`op-guide/tuning`): the heartbeat interval is about the largest round trip between members, the election
//! timeout is at least ten round trips and at most 50 s. Its program requires five heartbeats in an election timeout.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// etcd's default election timeout, for a leader that may be late.
const ELECTION_MIN: Duration = Duration::from_secs(1);
/// The least election timeout where no leader is late. It is that of the example in etcd's guide. A lost leader is replaced
/// within twice this time.
const ELECTION_STEADY_MIN: Duration = Duration::from_millis(500);
/// Heartbeats in an election timeout.
const ELECTION_HEARTBEATS: u32 = 10;
/// The election timeout as a number of round trips, whichever is longer.
const ELECTION_ROUND_TRIPS: u32 = 100;
/// The largest election timeout that etcd accepts.
const ELECTION_MAX: Duration = Duration::from_secs(50);
/// Measured values below this share of the present ones change nothing, so that members agree.
const SHRINK: u64 = 2;

/// etcd's `--heartbeat-interval` and `--election-timeout`, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// The interval at which the leader sends heartbeats.
    pub heartbeat_ms: u64,
    /// The time without a heartbeat after which a member starts an election.
    pub election_ms: u64,
}

impl Default for Timeouts {
    /// Returns the defaults of etcd.
    fn default() -> Self {
        Self::of_round_trip(Duration::ZERO, false)
    }
}

impl Timeouts {
    /// Returns the timeouts for the largest round trip between members: an interval of ten round trips and a timeout of a
    /// hundred, within limits. `is_steady` says that no member's disk is slow, and that leaders sent their heartbeats in time.
    pub fn of_round_trip(round_trip: Duration, is_steady: bool) -> Self {
        let least = if is_steady { ELECTION_STEADY_MIN } else { ELECTION_MIN };
        let election = (round_trip * ELECTION_ROUND_TRIPS).max(least).min(ELECTION_MAX);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self { heartbeat_ms: ms(election / ELECTION_HEARTBEATS), election_ms: ms(election) }
    }

    /// Returns the timeouts for the next start: larger ones at once, smaller ones only for half the present ones and after
    /// enough measures (`is_enough`). Whether members are steady stays as it was while it is not known.
    pub fn next(self, round_trip: Duration, is_steady: Option<bool>, is_enough: bool) -> Self {
        let was_steady = u128::from(self.election_ms) < ELECTION_MIN.as_millis();
        let measured = Self::of_round_trip(round_trip, is_steady.unwrap_or(was_steady));
        let is_larger = measured.election_ms > self.election_ms;
        let is_half = measured.election_ms.saturating_mul(SHRINK) <= self.election_ms;
        if is_larger || is_half && is_enough { measured } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_follow_round_trips_within_limits() {
        for (round_trip_ms, is_steady, heartbeat_ms, election_ms) in [
            (0, false, 100, 1000),
            (1, false, 100, 1000),
            (10, false, 100, 1000),
            (25, false, 250, 2500),
            (400, false, 4000, 40_000),
            (900, false, 5000, 50_000),
            (0, true, 50, 500),
            (5, true, 50, 500),
            (8, true, 80, 800),
            (25, true, 250, 2500),
        ] {
            let timeouts = Timeouts::of_round_trip(Duration::from_millis(round_trip_ms), is_steady);
            assert_eq!(timeouts, Timeouts { heartbeat_ms, election_ms }, "{round_trip_ms} ms, {is_steady}");
        }
        assert_eq!(Timeouts::default(), Timeouts { heartbeat_ms: 100, election_ms: 1000 });
    }

    #[test]
    fn small_changes_downwards_are_ignored() {
        let now = Timeouts { heartbeat_ms: 400, election_ms: 4000 };
        let next = |round_trip_ms, is_enough| now.next(Duration::from_millis(round_trip_ms), Some(false), is_enough);
        assert_eq!(next(30, true), now, "3 s is not half of 4 s");
        assert_eq!(next(15, true).election_ms, 1500);
        assert_eq!(next(15, false), now, "too few measures");
        assert_eq!(next(41, false).election_ms, 4100);
    }

    #[test]
    fn members_that_are_no_longer_steady_get_longer_timeouts_at_once() {
        let (usual, short) = (Timeouts::default(), Timeouts { heartbeat_ms: 50, election_ms: 500 });
        let round_trip = Duration::from_millis(1);
        for (now, is_steady, is_enough, want) in [
            (usual, None, true, usual),
            (usual, Some(true), false, usual),
            (usual, Some(true), true, short),
            (short, None, false, short),
            (short, Some(true), true, short),
            (short, Some(false), false, usual),
        ] {
            assert_eq!(now.next(round_trip, is_steady, is_enough), want, "{now:?} {is_steady:?} {is_enough}");
        }
    }
}
