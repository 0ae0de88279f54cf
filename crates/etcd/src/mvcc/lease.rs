//! Leases. The caller passes times, counted from the start of the process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use crate::error::Error;

/// The minimum TTL in seconds: what etcd grants with its default election timeout.
pub const LEASE_SECONDS_MIN: i64 = 2;
/// The maximum TTL in seconds: what etcd can count in nanoseconds.
pub const LEASE_SECONDS_MAX: i64 = 9_000_000_000;

/// A granted lease that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The TTL in seconds after the grant or a renewal.
    pub seconds: i64,
    /// The time at which it ends.
    pub ends: Duration,
    /// The keys attached to it.
    pub keys: BTreeSet<Bytes>,
}

#[derive(Debug, Default)]
pub(super) struct Leases {
    by_id: BTreeMap<i64, Lease>,
    by_end: BTreeSet<(Duration, i64)>,
}

impl Leases {
    pub fn iter(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.by_id.iter().map(|(id, lease)| (*id, lease))
    }

    pub fn get(&self, id: i64) -> Option<&Lease> {
        self.by_id.get(&id)
    }

    /// Grants a lease, or changes the TTL of an existing one.
    pub fn grant(&mut self, id: i64, seconds: i64, now: Duration) {
        let keys = self.remove(id).map(|lease| lease.keys).unwrap_or_default();
        let ends = end(seconds, now);
        self.by_end.insert((ends, id));
        self.by_id.insert(id, Lease { seconds, ends, keys });
    }

    /// Renews a lease; returns its TTL in seconds. A lease whose time has passed cannot be renewed.
    pub fn renew(&mut self, id: i64, now: Duration) -> Result<i64, Error> {
        let lease = self.by_id.get_mut(&id).filter(|lease| lease.ends > now).ok_or(Error::LeaseNotFound)?;
        self.by_end.remove(&(lease.ends, id));
        lease.ends = end(lease.seconds, now);
        self.by_end.insert((lease.ends, id));
        Ok(lease.seconds)
    }

    pub fn remove(&mut self, id: i64) -> Option<Lease> {
        let lease = self.by_id.remove(&id)?;
        self.by_end.remove(&(lease.ends, id));
        Some(lease)
    }

    /// Returns the time at which the next lease ends.
    pub fn next_end(&self) -> Option<Duration> {
        self.by_end.first().map(|(ends, _)| *ends)
    }

    /// Returns leases whose time has passed, those that ended first in front.
    pub fn ended(&self, now: Duration, limit: usize) -> Vec<i64> {
        self.by_end.iter().take_while(|(ends, _)| *ends <= now).take(limit).map(|(_, id)| *id).collect()
    }

    /// Moves a key from one lease to another; 0 means none.
    pub fn moved(&mut self, key: &Bytes, from: i64, to: i64) {
        if from == to {
            return;
        }
        if let Some(lease) = self.by_id.get_mut(&from) {
            lease.keys.remove(key);
        }
        if let Some(lease) = self.by_id.get_mut(&to) {
            lease.keys.insert(key.clone());
        }
    }
}

fn end(seconds: i64, now: Duration) -> Duration {
    now.saturating_add(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// Returns the TTL that is granted for a requested one.
pub(super) fn seconds_granted(asked: i64) -> Result<i64, Error> {
    if asked > LEASE_SECONDS_MAX { Err(Error::LeaseTtlTooLarge) } else { Ok(asked.max(LEASE_SECONDS_MIN)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_end_unless_renewed() {
        let s = Duration::from_secs;
        let mut leases = Leases::default();
        leases.grant(7, 10, s(0));
        leases.grant(8, 5, s(0));
        assert_eq!((leases.next_end(), leases.ended(s(4), 9)), (Some(s(5)), vec![]));
        assert_eq!(leases.renew(8, s(4)), Ok(5));
        assert_eq!(leases.ended(s(10), 9), [8, 7]);
        assert_eq!(leases.ended(s(10), 1), [8]);
        assert_eq!(leases.renew(7, s(10)), Err(Error::LeaseNotFound));
        leases.remove(7);
        leases.remove(8);
        assert_eq!(leases.next_end(), None);
    }

    #[test]
    fn lives_that_are_asked_for() {
        let check = |asked, granted| assert_eq!(seconds_granted(asked), granted, "{asked}");
        check(-5, Ok(2));
        check(0, Ok(2));
        check(2, Ok(2));
        check(60, Ok(60));
        check(LEASE_SECONDS_MAX, Ok(LEASE_SECONDS_MAX));
        check(LEASE_SECONDS_MAX + 1, Err(Error::LeaseTtlTooLarge));
    }

    #[test]
    fn keys_go_from_lease_to_lease() {
        let mut leases = Leases::default();
        let key = Bytes::from_static(b"a");
        leases.grant(1, 10, Duration::ZERO);
        leases.grant(2, 10, Duration::ZERO);
        leases.moved(&key, 0, 1);
        leases.moved(&key, 1, 2);
        leases.grant(2, 20, Duration::ZERO);
        let keys = |id| leases.get(id).map(|l| l.keys.len());
        assert_eq!((keys(1), keys(2)), (Some(0), Some(1)));
    }
}
