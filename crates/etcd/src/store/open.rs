//! From files to a running store.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kelson_tasks::{OnPanic, Tasks};
use parking_lot::RwLock;
use rand::Rng as _;
use tokio::sync::{Notify, mpsc};

use super::clock::Clock;
use super::commit::{Committer, WAITING_MAX};
use super::compaction;
use super::durations::Durations;
use super::face::Store;
use super::leases;
use super::retention::AutoCompaction;
use super::shared::Shared;
use super::snapshot::Snapshots;
use crate::disk::{self, DISK, DiskError, Identity};
use crate::mvcc::{Limits, State};

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
            failed_commits: AtomicU64::new(0),
            commit_times: Durations::default(),
            sync_times: Durations::default(),
            log_bytes: AtomicU64::new(log.as_ref().map_or(0, disk::Log::bytes)),
            snapshot_bytes: AtomicU64::new(snapshot_bytes),
            granted: Notify::new(),
            failed: RwLock::new(None),
            disk_fault: RwLock::new(None),
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
}
