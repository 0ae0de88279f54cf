//! The whole of it: keys, leases, revisions, and what changed in which order.

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

/// Revision of the empty store.
const FIRST: i64 = 1;
/// The compaction that was never done.
const NEVER: i64 = -1;

/// What the store is bounded by beside memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Operations of a transaction (`--max-txn-ops`).
    pub txn_ops_max: usize,
    /// Bytes of a request (`--max-request-bytes`).
    pub request_bytes_max: usize,
    /// Bytes of all keys, values and versions (`--quota-backend-bytes`); `None` for no limit.
    pub quota_bytes: Option<u64>,
}

/// That a key changed; its version is in the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Revision and place of the change.
    pub revision: Revision,
    /// The key, in the bytes that the index holds.
    pub key: Bytes,
}

/// Keys, versions and leases.
#[derive(Debug)]
pub struct State {
    pub(super) index: Index,
    /// Changes from the last compaction on, in order.
    pub(super) log: VecDeque<Change>,
    pub(super) leases: Leases,
    /// The revision of what was written, of which readers see up to `shown`.
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
    /// The current revision, which readers see.
    pub fn revision(&self) -> i64 {
        self.shown
    }

    /// The revision of the last compaction; -1 before the first.
    pub fn compacted(&self) -> i64 {
        self.compacted
    }

    /// Bytes of all keys and values with what goes along.
    pub fn bytes(&self) -> u64 {
        self.index.bytes()
    }

    /// How many keys there are, those included whose deletion is still remembered.
    pub fn keys(&self) -> usize {
        self.index.len()
    }

    /// Keys and values as of one revision.
    ///
    /// # Errors
    /// The revision is not known any more, or not yet.
    pub fn range(&self, r: &RangeRequest) -> Result<RangeResponse, Error> {
        read::range(&self.index, r, self.shown, self.compacted)
    }

    /// Lets readers see all that was written.
    pub fn show(&mut self) {
        self.shown = self.applied;
    }

    /// Takes back all that was written and not shown.
    pub fn undo(&mut self) {
        self.undo_to(self.shown);
    }

    /// Takes back what was written after a revision.
    pub(super) fn undo_to(&mut self, main: i64) {
        while let Some(change) = self.log.pop_back_if(|change| change.revision.main > main) {
            let lease = self.index.pop(&change.key).map_or(0, |version| version.lease);
            let before = self.index.newest(&change.key).map_or(0, |version| version.lease);
            self.leases.moved(&change.key, lease, before);
        }
        self.applied = main;
    }

    /// Changes from a revision on that readers see, in order, each with its version. Those that a compaction took are left out.
    pub fn changes_from(&self, main: i64) -> impl Iterator<Item = (&Change, &Version)> {
        let shown = self.shown;
        self.log_from(main)
            .take_while(move |change| change.revision.main <= shown)
            .filter_map(|change| self.known(change))
    }

    /// What was written and not shown.
    pub fn changes_not_shown(&self) -> impl Iterator<Item = (&Change, &Version)> {
        self.log_from(self.shown.saturating_add(1)).filter_map(|change| self.known(change))
    }

    fn log_from(&self, main: i64) -> impl Iterator<Item = &Change> {
        self.log.range(self.log.partition_point(|change| change.revision.main < main)..)
    }

    fn known<'a>(&'a self, change: &'a Change) -> Option<(&'a Change, &'a Version)> {
        Some((change, self.index.written_at(&change.key, change.revision)?))
    }

    /// The version of a key as of a revision that is still known.
    pub fn version_at(&self, key: &[u8], main: i64) -> Option<(&Bytes, &Version)> {
        if main < self.compacted { None } else { self.index.at(key, main) }
    }

    /// All known versions of the keys after one, in order of keys.
    pub fn versions_after<'a>(&'a self, after: Option<&'a Bytes>) -> impl Iterator<Item = (&'a Bytes, &'a Version)> {
        self.index.versions_after(after)
    }

    /// A checksum over the versions up to a revision (0: what readers see), as etcd makes it, and that revision.
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

    /// Whether a compaction up to a revision can be done now.
    ///
    /// # Errors
    /// It was done already, or the revision is not there yet.
    pub fn check_compact(&self, main: i64) -> Result<(), Error> {
        if main <= self.compacted {
            Err(Error::Compacted)
        } else if main > self.shown {
            Err(Error::FutureRevision)
        } else {
            Ok(())
        }
    }

    /// Ends the time in which revisions before this one can be read. [`State::forget_some`] gives their memory back.
    pub fn compact(&mut self, main: i64) {
        self.compacted = self.compacted.max(main);
    }

    /// Forgets versions that nobody can read any more, as many changes as `limit` says; whether some may be left.
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

    /// The life that a lease would get.
    ///
    /// # Errors
    /// It is there already, or is asked for longer than can be.
    pub fn check_grant(&self, id: i64, seconds: i64) -> Result<i64, Error> {
        let seconds = seconds_granted(seconds)?;
        if self.leases.get(id).is_some() { Err(Error::LeaseExists) } else { Ok(seconds) }
    }

    /// Makes a lease.
    pub fn grant(&mut self, id: i64, seconds: i64, now: Duration) {
        self.leases.grant(id, seconds, now);
    }

    /// Takes a lease away.
    pub fn end_lease(&mut self, id: i64) {
        self.leases.remove(id);
    }

    /// Begins the life of a lease anew; gives its seconds.
    ///
    /// # Errors
    /// There is no such lease, or its end has come.
    pub fn renew(&mut self, id: i64, now: Duration) -> Result<i64, Error> {
        self.leases.renew(id, now)
    }

    /// A lease, unless it ended or was never granted.
    pub fn lease(&self, id: i64) -> Option<&Lease> {
        self.leases.get(id)
    }

    /// All leases with their IDs, by ID.
    pub fn leases(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.leases.iter()
    }

    /// When the next lease ends.
    pub fn next_lease_end(&self) -> Option<Duration> {
        self.leases.next_end()
    }

    /// Leases whose end has come, at most `limit`.
    pub fn ended_leases(&self, now: Duration, limit: usize) -> Vec<i64> {
        self.leases.ended(now, limit)
    }

    pub(super) fn check_lease(&self, id: i64) -> Result<(), Error> {
        if id == 0 || self.leases.get(id).is_some() { Ok(()) } else { Err(Error::LeaseNotFound) }
    }

    /// Takes a version over from the disk. Those of one key come in order; [`State::loaded`] ends it.
    pub fn load(&mut self, key: &Bytes, version: Version) {
        let revision = version.revision;
        let key = self.index.push(key, version);
        self.log.push_back(Change { revision, key });
        self.applied = self.applied.max(revision.main);
    }

    /// Brings the order of changes and the keys of leases up to what was loaded, and shows it. The store went on to
    /// `main` at least: the last changes may have been compacted.
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
