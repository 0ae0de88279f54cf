//! Opens a store from its files.

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

/// Options of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The data directory; without one, everything is lost with the process.
    pub data_dir: Option<PathBuf>,
    /// Whether each commit is synced (false with `--unsafe-no-fsync`): if not, a power failure loses what the kernel
    /// had not written.
    pub syncs: bool,
    /// The limits of the state.
    pub limits: Limits,
    /// The history to keep. `None` keeps everything until a client compacts.
    pub auto_compaction: Option<AutoCompaction>,
}

impl Store {
    /// Opens or creates a store. Its tasks run in the group; a failed disk [fails](Tasks::fail) it.
    ///
    /// # Errors
    /// An I/O error, damaged files, or a directory of another program.
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
