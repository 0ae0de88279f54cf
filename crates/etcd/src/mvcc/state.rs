//! The whole state: keys, leases, revisions, and the changes in their order.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::history::{Revision, Version};
use super::index::Index;
use super::lease::{Lease, Leases, seconds_granted};
use super::range::KeyRange;
use super::{hash, read};
use crate::error::Error;
use crate::proto::{RangeRequest, RangeResponse};

/// The revision of the empty store.
const FIRST: i64 = 1;
/// The value when there was no compaction.
const NEVER: i64 = -1;

/// The limits of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of operations in a transaction (`--max-txn-ops`).
    pub txn_ops_max: usize,
    /// The maximum size of a request in bytes (`--max-request-bytes`).
    pub request_bytes_max: usize,
    /// The maximum size of all keys, values and versions in bytes (`--quota-backend-bytes`); `None` for no limit.
    pub quota_bytes: Option<u64>,
}

/// A change of a key; its version is in the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The revision of the change.
    pub revision: Revision,
    /// The key, sharing its bytes with the index.
    pub key: Bytes,
}

/// Keys, versions and leases of a store, in memory.
///
/// Writes get the next revision and are applied at once, but [`State::range`] and the other reads only see what
/// [`State::show`] has published after the disk stored it. [`State::undo`] reverts the rest. Compaction has two parts:
/// [`State::compact`] makes old revisions unreadable, and [`State::forget_some`] frees their memory step by step.
#[derive(Debug)]
pub struct State {
    pub(super) index: Index,
    /// Changes since the last compaction, in order.
    pub(super) log: VecDeque<Change>,
    pub(super) leases: Leases,
    /// The last revision that was written; readers see up to `shown`.
    pub(super) applied: i64,
    shown: i64,
    compacted: i64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            index: Index::default(),
            log: VecDeque::new(),
            leases: Leases::default(),
            applied: FIRST,
            shown: FIRST,
            compacted: NEVER,
        }
    }
}

impl State {
    /// Returns the current revision, which readers see.
    pub fn revision(&self) -> i64 {
        self.shown
    }

    /// Returns the revision of the last compaction; -1 before the first.
    pub fn compacted(&self) -> i64 {
        self.compacted
    }

    /// Returns the size of all keys, values and versions in bytes.
    pub fn bytes(&self) -> u64 {
        self.index.bytes()
    }

    /// Returns the number of keys, including those whose deletion is still stored.
    pub fn keys(&self) -> usize {
        self.index.len()
    }

    /// Returns keys and values as of one revision.
    ///
    /// # Errors
    /// The revision is compacted, or does not exist yet.
    pub fn range(&self, r: &RangeRequest) -> Result<RangeResponse, Error> {
        read::range(&self.index, r, self.shown, self.compacted)
    }

    /// Makes everything that was written visible to readers.
    pub fn show(&mut self) {
        self.shown = self.applied;
    }

    /// Reverts everything that was written and not shown.
    pub fn undo(&mut self) {
        self.undo_to(self.shown);
    }

    /// Reverts what was written after a revision.
    pub(super) fn undo_to(&mut self, main: i64) {
        while let Some(change) = self.log.pop_back_if(|change| change.revision.main > main) {
            let lease = self.index.pop(&change.key).map_or(0, |version| version.lease);
            let before = self.index.newest(&change.key).map_or(0, |version| version.lease);
            self.leases.moved(&change.key, lease, before);
        }
        self.applied = main;
    }

    /// Returns the visible changes from a revision on, in order, each with its version. Compacted ones are left out.
    pub fn changes_from(&self, main: i64) -> impl Iterator<Item = (&Change, &Version)> {
        let shown = self.shown;
        self.log_from(main)
            .take_while(move |change| change.revision.main <= shown)
            .filter_map(|change| self.known(change))
    }

    /// Returns the changes that were written and not shown.
    pub fn changes_not_shown(&self) -> impl Iterator<Item = (&Change, &Version)> {
        self.log_from(self.shown.saturating_add(1)).filter_map(|change| self.known(change))
    }

    fn log_from(&self, main: i64) -> impl Iterator<Item = &Change> {
        self.log.range(self.log.partition_point(|change| change.revision.main < main)..)
    }

    fn known<'a>(&'a self, change: &'a Change) -> Option<(&'a Change, &'a Version)> {
        Some((change, self.index.written_at(&change.key, change.revision)?))
    }

    /// Returns the version of a key as of a revision that is not compacted.
    pub fn version_at(&self, key: &[u8], main: i64) -> Option<(&Bytes, &Version)> {
        if main < self.compacted { None } else { self.index.at(key, main) }
    }

    /// Returns all known versions of the keys after one, in order of keys.
    pub fn versions_after<'a>(&'a self, after: Option<&'a Bytes>) -> impl Iterator<Item = (&'a Bytes, &'a Version)> {
        self.index.versions_after(after)
    }

    /// Returns etcd's checksum over the versions up to a revision (0: what readers see), and that revision.
    ///
    /// # Errors
    /// As of [`State::range`].
    pub fn hash(&self, main: i64) -> Result<(u32, i64), Error> {
        let main = if main == 0 { self.shown } else { main };
        if main > 0 && main < self.compacted {
            return Err(Error::Compacted);
        }
        if main > self.shown {
            return Err(Error::FutureRevision);
        }
        Ok((hash::of(&self.index, main, self.compacted), main))
    }

    /// Checks that a compaction up to a revision is possible now.
    ///
    /// # Errors
    /// It was done already, or the revision does not exist yet.
    pub fn check_compact(&self, main: i64) -> Result<(), Error> {
        if main <= self.compacted {
            Err(Error::Compacted)
        } else if main > self.shown {
            Err(Error::FutureRevision)
        } else {
            Ok(())
        }
    }

    /// Makes revisions before this one unreadable. [`State::forget_some`] frees their memory.
    pub fn compact(&mut self, main: i64) {
        self.compacted = self.compacted.max(main);
    }

    /// Frees versions that can no longer be read, up to `limit` changes; returns whether some may be left.
    pub fn forget_some(&mut self, limit: usize) -> bool {
        let main = self.compacted;
        for _ in 0..limit {
            let Some(change) = self.log.pop_front_if(|change| change.revision.main < main) else {
                let last: Vec<Bytes> =
                    self.log.iter().take_while(|c| c.revision.main == main).map(|c| c.key.clone()).collect();
                last.iter().for_each(|key| self.index.compact(key, main));
                if self.log.capacity() > self.log.len().saturating_mul(4) {
                    self.log.shrink_to(self.log.len().saturating_mul(2));
                }
                return false;
            };
            self.index.compact(&change.key, main);
        }
        true
    }

    /// Returns the TTL that a lease would get.
    ///
    /// # Errors
    /// The lease exists already, or the TTL is too large.
    pub fn check_grant(&self, id: i64, seconds: i64) -> Result<i64, Error> {
        let seconds = seconds_granted(seconds)?;
        if self.leases.get(id).is_some() { Err(Error::LeaseExists) } else { Ok(seconds) }
    }

    /// Grants a lease.
    pub fn grant(&mut self, id: i64, seconds: i64, now: Duration) {
        self.leases.grant(id, seconds, now);
    }

    /// Removes a lease.
    pub fn end_lease(&mut self, id: i64) {
        self.leases.remove(id);
    }

    /// Renews a lease; returns its TTL in seconds.
    ///
    /// # Errors
    /// The lease does not exist, or its time has passed.
    pub fn renew(&mut self, id: i64, now: Duration) -> Result<i64, Error> {
        self.leases.renew(id, now)
    }

    /// Returns a lease, unless it ended or was never granted.
    pub fn lease(&self, id: i64) -> Option<&Lease> {
        self.leases.get(id)
    }

    /// Returns all leases, by ID.
    pub fn leases(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.leases.iter()
    }

    /// Returns the time at which the next lease ends.
    pub fn next_lease_end(&self) -> Option<Duration> {
        self.leases.next_end()
    }

    /// Returns leases whose time has passed, at most `limit`.
    pub fn ended_leases(&self, now: Duration, limit: usize) -> Vec<i64> {
        self.leases.ended(now, limit)
    }

    pub(super) fn check_lease(&self, id: i64) -> Result<(), Error> {
        if id == 0 || self.leases.get(id).is_some() { Ok(()) } else { Err(Error::LeaseNotFound) }
    }

    /// Adds a version from the disk. Those of one key come in order; [`State::loaded`] completes loading.
    pub fn load(&mut self, key: &Bytes, version: Version) {
        let revision = version.revision;
        let key = self.index.push(key, version);
        self.log.push_back(Change { revision, key });
        self.applied = self.applied.max(revision.main);
    }

    /// Rebuilds the order of changes and the keys of leases from what was loaded, and shows it. The revision becomes at
    /// least `main`, since the last changes may have been compacted.
    pub fn loaded(&mut self, main: i64) {
        self.log.make_contiguous().sort_unstable_by_key(|change| change.revision);
        self.applied = self.applied.max(main).max(self.compacted);
        for (key, version) in self.index.range(&KeyRange::From(Bytes::new()), self.applied) {
            self.leases.moved(key, 0, version.lease);
        }
        self.show();
        while self.forget_some(usize::MAX) {}
    }
}
