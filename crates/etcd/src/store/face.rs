//! What the server asks of the store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kelson_tasks::{OnPanic, Tasks};
use parking_lot::RwLock;
use prost::Message;
use rand::Rng as _;
use tokio::sync::{Notify, mpsc, oneshot};

use super::clock::Clock;
use super::commit::{Committer, Job, Tell, WAITING_MAX};
use super::compaction::{self, AutoCompaction};
use super::shared::Shared;
use super::snapshot::Snapshots;
use super::{grow, leases};
use crate::disk::{self, DISK, DiskError, Identity};
use crate::error::Error;
use crate::mvcc::{self, Limits, State};
use crate::proto::alarm_request::AlarmAction;
use crate::proto::{
    AlarmMember, AlarmRequest, AlarmType, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};

/// How a store is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Below it the files lie; without it, everything goes with the process.
    pub data_dir: Option<PathBuf>,
    /// Whether each commit is synced (`--unsafe-no-fsync` says not): without it, a power cut loses what the system had not
    /// written.
    pub syncs: bool,
    /// What bounds it.
    pub limits: Limits,
    /// How much of the past is kept; `None` for all until a client compacts.
    pub auto_compaction: Option<AutoCompaction>,
}

/// A running store. Cloning gives another handle.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
    data_dir: Option<Arc<Path>>,
}

impl Store {
    /// Opens or makes a store. Its tasks are in the group; a disk that cannot be trusted any more [fails](Tasks::fail) it.
    ///
    /// # Errors
    /// What the disk says; damage; a directory that belongs to something else.
    pub async fn open(options: Options, tasks: &Tasks) -> Result<Self, DiskError> {
        let id = || rand::rng().random_range(1..=u64::MAX);
        let new = Identity::new(id(), id());
        let data_dir = options.data_dir.as_deref().map(Arc::from);
        let (state, identity, alarms, log, snapshot_bytes) = match options.data_dir {
            None => (State::default(), new, Vec::new(), None, 0),
            Some(dir) => {
                let loaded = DISK.run(move || disk::load(&dir, new, options.syncs)).await;
                let loaded = loaded.unwrap_or_else(|error| {
                    let source = std::io::Error::other(error);
                    Err(DiskError::Io { what: "read", path: "the data directory".into(), source })
                })?;
                (loaded.state, loaded.identity, loaded.alarms, Some(loaded.log), loaded.snapshot_bytes)
            }
        };
        let shared = Arc::new(Shared {
            interests: Arc::default(),
            state: RwLock::new(state),
            identity,
            limits: options.limits,
            clock: Clock::start(),
            alarms: RwLock::new(alarms.into_iter().collect()),
            commits: AtomicU64::new(1),
            log_bytes: AtomicU64::new(log.as_ref().map_or(0, disk::Log::bytes)),
            snapshot_bytes: AtomicU64::new(snapshot_bytes),
            granted: Notify::new(),
            failed: RwLock::new(None),
        });
        let (jobs, queue) = mpsc::channel(WAITING_MAX);
        let store = Self { shared: Arc::clone(&shared), jobs, data_dir };
        let snapshots = Snapshots::default();
        let committer = Committer { shared, jobs: queue, log, tasks: tasks.clone(), snapshots, forgetting: false };
        tasks.spawn_graceful("etcd-commit", OnPanic::EndProcess, committer.run());
        let of = store.clone();
        tasks.supervise("etcd-leases", move || leases::run(of.clone()));
        if let Some(keep) = options.auto_compaction {
            let of = store.clone();
            tasks.supervise("etcd-compaction", move || compaction::run(of.clone(), keep));
        }
        Ok(store)
    }

    /// What readers and watches look at.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Below it the files lie.
    pub fn data_dir(&self) -> Option<&Path> {
        self.data_dir.as_deref()
    }

    /// The revision that readers see.
    pub fn revision(&self) -> i64 {
        self.shared.read(State::revision)
    }

    /// Keys and values as of one revision.
    ///
    /// # Errors
    /// What is wrong with the request; a revision that is not known any more, or not yet.
    pub fn range(&self, r: &RangeRequest) -> Result<RangeResponse, Error> {
        mvcc::check_range(r)?;
        self.shared.read(|state| state.range(r))
    }

    /// Writes one key.
    ///
    /// # Errors
    /// What is wrong with the request; no room; a disk that failed. So for the other writes.
    pub async fn put(&self, r: PutRequest) -> Result<PutResponse, Error> {
        mvcc::check_put(&r)?;
        self.check_size(&r)?;
        self.write(grow::put(&r), move |state| state.put(&r)).await
    }

    /// Deletes the keys of a range.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub async fn delete_range(&self, r: DeleteRangeRequest) -> Result<DeleteRangeResponse, Error> {
        mvcc::check_delete(&r)?;
        self.check_size(&r)?;
        self.write(0, move |state| Ok(state.delete_range(&r))).await
    }

    /// Runs a transaction.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub async fn txn(&self, r: TxnRequest) -> Result<TxnResponse, Error> {
        mvcc::check_txn(&r, self.shared.limits.txn_ops_max)?;
        if mvcc::is_read_only(&r) {
            return self.shared.read(|state| state.read_txn(&r));
        }
        self.check_size(&r)?;
        self.write(grow::txn(&r), move |state| state.txn(&r)).await
    }

    /// Forgets what was replaced before a revision. `whole` waits until its memory is given back.
    ///
    /// # Errors
    /// It was compacted already, or the revision is not there yet.
    pub async fn compact(&self, main: i64, whole: bool) -> Result<i64, Error> {
        self.ask(|tell| Job::Compact { main, whole, tell }).await?;
        Ok(self.revision())
    }

    /// Makes a lease; gives its ID and the seconds it lives. An ID of 0 leaves the choice to the store.
    ///
    /// # Errors
    /// It is there already, or is asked for longer than can be; no room.
    pub async fn grant(&self, id: i64, seconds: i64) -> Result<(i64, i64), Error> {
        loop {
            let chosen = if id == 0 { rand::rng().random_range(1..=i64::MAX) } else { id };
            let checked = self.shared.read(|state| state.check_grant(chosen, seconds));
            let granted = match checked {
                Ok(seconds) => self.ask(|tell| Job::Grant { id: chosen, seconds, tell }).await.map(|()| seconds),
                Err(error) => Err(error),
            };
            match granted {
                Err(Error::LeaseExists) if id == 0 => {}
                granted => return granted.map(|seconds| (chosen, seconds)),
            }
        }
    }

    /// Ends a lease and deletes its keys.
    ///
    /// # Errors
    /// There is no such lease.
    pub async fn revoke(&self, id: i64) -> Result<(), Error> {
        self.ask(|tell| Job::Revoke { id, ended: false, tell }).await
    }

    /// Ends a lease if its time has come.
    pub(super) async fn end_lease(&self, id: i64) -> Result<(), Error> {
        match self.ask(|tell| Job::Revoke { id, ended: true, tell }).await {
            Err(Error::LeaseNotFound) => Ok(()),
            done => done,
        }
    }

    /// Begins the life of a lease anew; gives its seconds. It is not written: after a start all leases begin anew.
    ///
    /// # Errors
    /// There is no such lease, or its end has come.
    pub fn renew(&self, id: i64) -> Result<i64, Error> {
        self.shared.state.write().renew(id, self.shared.clock.now())
    }

    /// Seconds that a lease has left, those it was granted, and its keys.
    pub fn lease(&self, id: i64, keys: bool) -> Option<(i64, i64, Vec<bytes::Bytes>)> {
        let now = self.shared.clock.now();
        self.shared.read(|state| {
            let lease = state.lease(id)?;
            let left = i64::try_from(lease.ends.saturating_sub(now).as_secs()).unwrap_or(i64::MAX);
            let keys = if keys { lease.keys.iter().cloned().collect() } else { Vec::new() };
            Some((left, lease.seconds, keys))
        })
    }

    /// Reads, raises or clears alarms; gives those that the answer names.
    ///
    /// # Errors
    /// A disk that failed.
    pub async fn alarm(&self, r: AlarmRequest) -> Result<Vec<AlarmMember>, Error> {
        let asked = |member: &AlarmMember| r.alarm == AlarmType::None as i32 || member.alarm == r.alarm;
        let on = self.shared.alarms().into_iter().filter(asked);
        let own = r.member_id == self.shared.identity.member_id;
        let named = AlarmMember { member_id: r.member_id, alarm: r.alarm };
        match r.action() {
            AlarmAction::Get => Ok(on.collect()),
            AlarmAction::Activate if own && r.alarm != AlarmType::None as i32 => {
                self.ask(|tell| Job::Alarm { alarm: r.alarm, on: true, tell }).await?;
                Ok(vec![named])
            }
            AlarmAction::Deactivate if own && on.count() > 0 => {
                self.ask(|tell| Job::Alarm { alarm: r.alarm, on: false, tell }).await?;
                Ok(vec![named])
            }
            AlarmAction::Activate | AlarmAction::Deactivate => Ok(Vec::new()),
        }
    }

    /// Writes the files anew, so that they hold nothing that is not needed.
    ///
    /// # Errors
    /// A disk that failed.
    pub async fn defragment(&self) -> Result<(), Error> {
        self.ask(|tell| Job::Snapshot { tell }).await
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
        let (tell, told) = oneshot::channel();
        let change = Box::new(move |state: Result<&mut State, Error>| {
            let answer = state.and_then(change);
            // Who asked may be gone.
            Box::new(move |stored: Result<(), Error>| drop(tell.send(stored.and(answer)))) as Tell
        });
        self.jobs.send(Job::Write { grows, change }).await.map_err(|_| Error::Stopped)?;
        told.await.map_err(|_| Error::Stopped)?
    }

    async fn ask(&self, job: impl FnOnce(Tell) -> Job) -> Result<(), Error> {
        let (tell, told) = oneshot::channel();
        let tell: Tell = Box::new(move |answer| {
            let _ = tell.send(answer);
        });
        self.jobs.send(job(tell)).await.map_err(|_| Error::Stopped)?;
        told.await.map_err(|_| Error::Stopped)?
    }
}
