//! Heartbeat interval and election timeout of a member, from measured round trips. Pure.
//!
//! etcd's rules (`op-guide/tuning`): the heartbeat interval is about the largest round trip between members, the election
//! timeout ten times that and at least ten round trips, at most 50 s. Here the interval is at least etcd's default.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// etcd's default heartbeat interval. A machine under load needs it even where the network is faster.
const HEARTBEAT_MIN: Duration = Duration::from_millis(100);
/// Heartbeats in an election timeout.
const ELECTION_HEARTBEATS: u32 = 10;
/// The election timeout as a number of round trips, whichever is longer.
const ELECTION_ROUND_TRIPS: u32 = 100;
/// The largest election timeout that etcd accepts.
const ELECTION_MAX: Duration = Duration::from_secs(50);
/// Measured values below this share of the present ones change nothing, so that members agree.
const SHRINK: u32 = 2;

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
        Self::of_round_trip(Duration::ZERO)
    }
}

impl Timeouts {
    /// Returns the timeouts for the largest round trip between members: an interval of ten round trips and a timeout of a
    /// hundred, within etcd's limits.
    pub fn of_round_trip(round_trip: Duration) -> Self {
        let election = (round_trip * ELECTION_ROUND_TRIPS).max(HEARTBEAT_MIN * ELECTION_HEARTBEATS).min(ELECTION_MAX);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self { heartbeat_ms: ms(election / ELECTION_HEARTBEATS), election_ms: ms(election) }
    }

    /// Returns the timeouts for the next start: larger ones at once, smaller ones only for half the round trip.
    pub fn next(self, round_trip: Duration) -> Self {
        let measured = Self::of_round_trip(round_trip);
        let is_smaller =
            measured.election_ms * u64::from(SHRINK) > self.election_ms && measured.election_ms < self.election_ms;
        if is_smaller { self } else { measured }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_follow_round_trips_within_limits() {
        for (round_trip_ms, heartbeat_ms, election_ms) in
            [(0, 100, 1000), (1, 100, 1000), (10, 100, 1000), (25, 250, 2500), (400, 4000, 40_000), (900, 5000, 50_000)]
        {
            let timeouts = Timeouts::of_round_trip(Duration::from_millis(round_trip_ms));
            assert_eq!(timeouts, Timeouts { heartbeat_ms, election_ms }, "{round_trip_ms} ms");
        }
    }

    #[test]
    fn small_changes_downwards_are_ignored() {
        let now = Timeouts { heartbeat_ms: 400, election_ms: 4000 };
        assert_eq!(now.next(Duration::from_millis(30)), now, "3 s is not half of 4 s");
        assert_eq!(now.next(Duration::from_millis(15)).election_ms, 1500);
        assert_eq!(now.next(Duration::from_millis(41)).election_ms, 4100);
    }
}
