//! The state shared by committer, readers and watches.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use tokio::sync::Notify;

use super::clock::Clock;
use super::durations::Durations;
use super::interest::{Interest, Interests};
use crate::disk::Identity;
use crate::mvcc::{Limits, State};
use crate::proto::{AlarmMember, AlarmType, ResponseHeader};

/// The state with its counters and errors.
#[derive(Debug)]
pub struct Shared {
    pub(super) state: RwLock<State>,
    pub(super) identity: Identity,
    pub(super) limits: Limits,
    pub(super) clock: Clock,
    pub(super) interests: Arc<Interests>,
    pub(super) alarms: RwLock<BTreeSet<i32>>,
    /// The number of commits: the index of etcd's log.
    pub(super) commits: AtomicU64,
    /// The number of commits that could not be stored.
    pub(super) failed_commits: AtomicU64,
    /// Durations of commits, and of their syncs.
    pub(super) commit_times: Durations,
    pub(super) sync_times: Durations,
    pub(super) log_bytes: AtomicU64,
    pub(super) snapshot_bytes: AtomicU64,
    /// Notified when a lease was granted, so that the next end may be sooner.
    pub(super) granted: Notify,
    /// Why nothing is written any more.
    pub(super) failed: RwLock<Option<String>>,
    /// Why the last commit was not stored, for a temporary error: the disk is full.
    pub(super) disk_fault: RwLock<Option<String>>,
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Logs and snapshot on the disk.
    pub disk: u64,
    /// Keys, values and versions, which the quota limits.
    pub data: u64,
    /// The quota; 0 for none.
    pub quota: u64,
}

impl Shared {
    /// Calls `look` with the state. It blocks writes, so `look` must not wait.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read())
    }

    /// Creates the ranges of a new stream of watches.
    pub fn interest(&self) -> Interest {
        self.interests.stream()
    }

    /// Returns the number of watches.
    pub fn watches(&self) -> usize {
        self.interests.watches()
    }

    /// Returns the header of an answer.
    pub fn header(&self, revision: i64) -> ResponseHeader {
        // A log with one writer is always in the same term.
        const TERM: u64 = 2;
        ResponseHeader {
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            revision,
            raft_term: TERM,
        }
    }

    /// Returns the identity of the store.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the active alarms.
    pub fn alarms(&self) -> Vec<AlarmMember> {
        let alarm = |alarm: &i32| AlarmMember { member_id: self.identity.member_id, alarm: *alarm };
        self.alarms.read().iter().map(alarm).collect()
    }

    pub(super) fn is_full(&self) -> bool {
        self.alarms.read().contains(&(AlarmType::Nospace as i32))
    }

    /// Returns the number of commits.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Returns the number of commits that were not stored.
    pub fn failed_commits(&self) -> u64 {
        self.failed_commits.load(Ordering::Relaxed)
    }

    /// Returns the durations of commits on the disk.
    pub fn commit_times(&self) -> &Durations {
        &self.commit_times
    }

    /// Returns the durations of syncs.
    pub fn sync_times(&self) -> &Durations {
        &self.sync_times
    }

    /// Returns the sizes.
    pub fn sizes(&self) -> Sizes {
        let disk = self.log_bytes.load(Ordering::Relaxed) + self.snapshot_bytes.load(Ordering::Relaxed);
        Sizes { disk, data: self.read(State::bytes), quota: self.limits.quota_bytes.unwrap_or(0) }
    }

    /// Returns why the last commit was not stored. The next successful commit clears it.
    pub fn disk_fault(&self) -> Option<String> {
        self.disk_fault.read().clone()
    }

    /// Records the result of a commit on the disk; an error is logged once.
    pub(crate) fn disk(&self, fault: Option<String>) {
        if self.disk_fault.read().is_none() && fault.is_none() {
            return;
        }
        let before = std::mem::replace(&mut *self.disk_fault.write(), fault.clone());
        match (before, fault) {
            (None, Some(fault)) => tracing::error!(fault, "storing commits fails; rejecting writes"),
            (Some(_), None) => tracing::info!("storing commits works again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    /// Returns why nothing is written any more, if so.
    pub fn failed(&self) -> Option<String> {
        self.failed.read().clone()
    }
}
