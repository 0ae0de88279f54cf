//! The interface of the store to the server.

use std::path::Path;
use std::sync::Arc;

use prost::Message;
use rand::Rng as _;
use tokio::sync::{mpsc, oneshot};

use super::commit::{Completion, Job};
use super::grow;
use super::shared::Shared;
use crate::error::Error;
use crate::mvcc::{self, State};
use crate::proto::alarm_request::AlarmAction;
use crate::proto::{
    AlarmMember, AlarmRequest, AlarmType, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};

/// A running store. A clone is another handle to the same store.
///
/// Reads run on the visible state under a short lock. Writes go through a bounded queue to one committer, which applies
/// them, appends them to the log with one sync for all that wait, and only then answers and shows them. The store ends
/// with the task group it was opened in.
#[derive(Clone, Debug)]
pub struct Store {
    pub(super) shared: Arc<Shared>,
    pub(super) jobs: mpsc::Sender<Job>,
    pub(super) data_dir: Option<Arc<Path>>,
}

impl Store {
    /// Returns the state that readers and watches use.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the data directory, if the store has files.
    pub fn data_dir(&self) -> Option<&Path> {
        self.data_dir.as_deref()
    }

    /// Returns the current revision, which readers see.
    pub fn revision(&self) -> i64 {
        self.shared.read(State::revision)
    }

    /// Returns keys and values as of one revision.
    ///
    /// # Errors
    /// An invalid request, or a revision that is compacted or does not exist yet.
    pub fn range(&self, r: &RangeRequest) -> Result<RangeResponse, Error> {
        mvcc::check_range(r)?;
        self.shared.read(|state| state.range(r))
    }

    /// Writes one key.
    ///
    /// # Errors
    /// An invalid request, an exceeded quota, or a failed disk. This applies to the other writes as well.
    pub async fn put(&self, r: PutRequest) -> Result<PutResponse, Error> {
        mvcc::check_put(&r)?;
        self.check_size(&r)?;
        self.write(grow::put(&r), move |state| state.put(&r)).await
    }

    /// Deletes the keys of a range.
    ///
    /// # Errors
    /// As of [`Store::put`].
    pub async fn delete_range(&self, r: DeleteRangeRequest) -> Result<DeleteRangeResponse, Error> {
        mvcc::check_delete(&r)?;
        self.check_size(&r)?;
        self.write(0, move |state| Ok(state.delete_range(&r))).await
    }

    /// Runs a transaction.
    ///
    /// # Errors
    /// As of [`Store::put`].
    pub async fn txn(&self, r: TxnRequest) -> Result<TxnResponse, Error> {
        mvcc::check_txn(&r, self.shared.limits.txn_ops_max)?;
        if mvcc::is_read_only(&r) {
            return self.shared.read(|state| state.read_txn(&r));
        }
        self.check_size(&r)?;
        self.write(grow::txn(&r), move |state| state.txn(&r)).await
    }

    /// Compacts up to a revision. `whole` waits until memory is freed.
    ///
    /// # Errors
    /// It was compacted already, or the revision does not exist yet.
    pub async fn compact(&self, main: i64, whole: bool) -> Result<i64, Error> {
        self.ask(|report| Job::Compact { main, whole, report }).await?;
        Ok(self.revision())
    }

    /// Grants a lease; returns its ID and its TTL in seconds. With an ID of 0 the store chooses one.
    ///
    /// # Errors
    /// The lease exists already, the TTL is too large, or the quota is exceeded.
    pub async fn grant(&self, id: i64, seconds: i64) -> Result<(i64, i64), Error> {
        loop {
            let chosen = if id == 0 { rand::rng().random_range(1..=i64::MAX) } else { id };
            let checked = self.shared.read(|state| state.check_grant(chosen, seconds));
            let granted = match checked {
                Ok(seconds) => self.ask(|report| Job::Grant { id: chosen, seconds, report }).await.map(|()| seconds),
                Err(error) => Err(error),
            };
            match granted {
                Err(Error::LeaseExists) if id == 0 => {}
                granted => return granted.map(|seconds| (chosen, seconds)),
            }
        }
    }

    /// Revokes a lease and deletes its keys.
    ///
    /// # Errors
    /// The lease does not exist.
    pub async fn revoke(&self, id: i64) -> Result<(), Error> {
        self.ask(|report| Job::Revoke { id, ended: false, report }).await
    }

    /// Ends a lease if its time has passed.
    pub(super) async fn end_lease(&self, id: i64) -> Result<(), Error> {
        match self.ask(|report| Job::Revoke { id, ended: true, report }).await {
            Err(Error::LeaseNotFound) => Ok(()),
            done => done,
        }
    }

    /// Renews a lease; returns its TTL in seconds. Renewals are not stored: after a start all leases have their full
    /// time.
    ///
    /// # Errors
    /// The lease does not exist, or its time has passed.
    pub fn renew(&self, id: i64) -> Result<i64, Error> {
        self.shared.state.write().renew(id, self.shared.clock.now())
    }

    /// Returns the remaining seconds of a lease, its TTL, and its keys.
    pub fn lease(&self, id: i64, keys: bool) -> Option<(i64, i64, Vec<bytes::Bytes>)> {
        let now = self.shared.clock.now();
        self.shared.read(|state| {
            let lease = state.lease(id)?;
            let left = i64::try_from(lease.ends.saturating_sub(now).as_secs()).unwrap_or(i64::MAX);
            let keys = if keys { lease.keys.iter().cloned().collect() } else { Vec::new() };
            Some((left, lease.seconds, keys))
        })
    }

    /// Reads, raises or clears alarms; returns those for the answer.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn alarm(&self, r: AlarmRequest) -> Result<Vec<AlarmMember>, Error> {
        let asked = |member: &AlarmMember| r.alarm == AlarmType::None as i32 || member.alarm == r.alarm;
        let on = self.shared.alarms().into_iter().filter(asked);
        let own = r.member_id == self.shared.identity.member_id;
        let named = AlarmMember { member_id: r.member_id, alarm: r.alarm };
        match r.action() {
            AlarmAction::Get => Ok(on.collect()),
            AlarmAction::Activate if own && r.alarm != AlarmType::None as i32 => {
                self.ask(|report| Job::Alarm { alarm: r.alarm, on: true, report }).await?;
                Ok(vec![named])
            }
            AlarmAction::Deactivate if own && on.count() > 0 => {
                self.ask(|report| Job::Alarm { alarm: r.alarm, on: false, report }).await?;
                Ok(vec![named])
            }
            AlarmAction::Activate | AlarmAction::Deactivate => Ok(Vec::new()),
        }
    }

    /// Rewrites the files without unneeded data.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn defragment(&self) -> Result<(), Error> {
        self.ask(|report| Job::Snapshot { report }).await
    }

    fn check_size(&self, r: &impl Message) -> Result<(), Error> {
        let large = r.encoded_len() > self.shared.limits.request_bytes_max;
        if large { Err(Error::RequestTooLarge) } else { Ok(()) }
    }

    async fn write<T: Send + 'static>(
        &self,
        grows: u64,
        change: impl FnOnce(&mut State) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (report, reported) = oneshot::channel();
        let change = Box::new(move |state: Result<&mut State, Error>| {
            let answer = state.and_then(change);
            // The caller may be gone.
            Box::new(move |stored: Result<(), Error>| drop(report.send(stored.and(answer)))) as Completion
        });
        self.jobs.send(Job::Write { grows, change }).await.map_err(|_| Error::Stopped)?;
        reported.await.map_err(|_| Error::Stopped)?
    }

    async fn ask(&self, job: impl FnOnce(Completion) -> Job) -> Result<(), Error> {
        let (report, reported) = oneshot::channel();
        let report: Completion = Box::new(move |answer| {
            let _ = report.send(answer);
        });
        self.jobs.send(job(report)).await.map_err(|_| Error::Stopped)?;
        reported.await.map_err(|_| Error::Stopped)?
    }
}
