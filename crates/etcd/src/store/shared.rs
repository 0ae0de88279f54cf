//! What committer, readers and watches share.

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

/// The state and what belongs to it.
#[derive(Debug)]
pub struct Shared {
    pub(super) state: RwLock<State>,
    pub(super) identity: Identity,
    pub(super) limits: Limits,
    pub(super) clock: Clock,
    pub(super) interests: Arc<Interests>,
    pub(super) alarms: RwLock<BTreeSet<i32>>,
    /// Commits so far: what etcd calls the index of its log.
    pub(super) commits: AtomicU64,
    /// Number of commits that could not be stored.
    pub(super) failed_commits: AtomicU64,
    /// How long commits took, and their syncs alone.
    pub(super) commit_times: Durations,
    pub(super) sync_times: Durations,
    pub(super) log_bytes: AtomicU64,
    pub(super) snapshot_bytes: AtomicU64,
    /// A lease was granted, so the next end may be sooner.
    pub(super) granted: Notify,
    /// Why nothing is written any more.
    pub(super) failed: RwLock<Option<String>>,
    /// Why the last commit was not stored, where that may pass: the disk is full.
    pub(super) disk_fault: RwLock<Option<String>>,
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Logs and snapshot on the disk.
    pub disk: u64,
    /// Keys, values and what goes along, which the quota limits.
    pub data: u64,
    /// The quota; 0 for none.
    pub quota: u64,
}

impl Shared {
    /// Looks at the state. It holds up writes: no waiting meanwhile.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read())
    }

    /// A new stream of watches, which wants to hear of nothing yet.
    pub fn interest(&self) -> Interest {
        self.interests.stream()
    }

    /// How many watches there are.
    pub fn watches(&self) -> usize {
        self.interests.watches()
    }

    /// The header of an answer.
    pub fn header(&self, revision: i64) -> ResponseHeader {
        // A log of one writer is in the same term all the time.
        const TERM: u64 = 2;
        ResponseHeader {
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            revision,
            raft_term: TERM,
        }
    }

    /// Who the store is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// What bounds it.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Alarms that are on.
    pub fn alarms(&self) -> Vec<AlarmMember> {
        let alarm = |alarm: &i32| AlarmMember { member_id: self.identity.member_id, alarm: *alarm };
        self.alarms.read().iter().map(alarm).collect()
    }

    pub(super) fn is_full(&self) -> bool {
        self.alarms.read().contains(&(AlarmType::Nospace as i32))
    }

    /// How many commits there were.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// How many commits were not stored.
    pub fn failed_commits(&self) -> u64 {
        self.failed_commits.load(Ordering::Relaxed)
    }

    /// How long commits took on the disk.
    pub fn commit_times(&self) -> &Durations {
        &self.commit_times
    }

    /// How long the disk took to confirm them.
    pub fn sync_times(&self) -> &Durations {
        &self.sync_times
    }

    /// How large it is.
    pub fn sizes(&self) -> Sizes {
        let disk = self.log_bytes.load(Ordering::Relaxed) + self.snapshot_bytes.load(Ordering::Relaxed);
        Sizes { disk, data: self.read(State::bytes), quota: self.limits.quota_bytes.unwrap_or(0) }
    }

    /// Why the last commit was not stored. It is forgotten with the next one that is.
    pub fn disk_fault(&self) -> Option<String> {
        self.disk_fault.read().clone()
    }

    /// Notes how the disk took a commit; a fault is logged once.
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

    /// Why nothing is written any more, where that is so.
    pub fn failed(&self) -> Option<String> {
        self.failed.read().clone()
    }
}
