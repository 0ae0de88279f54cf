//! [`Store`], the entry point of the crate: it reads, watches, and hands writes to the committer.
#![allow(clippy::disallowed_methods, reason = "blocking: on the committer's own thread; opened in the lane for files")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kelson_tasks::Lane;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::at_rest::SealError;
use crate::commit::Committer;
use crate::cursor::Cursor;
use crate::error::StoreError;
use crate::health::Health;
use crate::key::{RecordName, Resource};
use crate::limits::{EXPIRY_PASS_EVERY_S, UNLOCK_EVERY_S};
use crate::queue::{ExpectedWrite, Pending};
use crate::record::Record;
use crate::remote::{PortChange, Remote};
use crate::saved::{self, Contents};
use crate::scope::WatchScope;
use crate::shared::Shared;
use crate::state::{ListView, take_back};
use crate::stats::Stats;
use crate::write::{Committed, Precondition, Write};

/// The lane in which [`Store::close`] waits for the committer's last sync, so that it does not block a runtime thread.
static CLOSING: Lane = Lane::new("store-close", 1);
/// The lane in which a key service is waited for.
static UNLOCK: Lane = Lane::new("store-unlock", 1);

/// The way in which this store performs its writes.
#[expect(clippy::large_enum_variant, reason = "there is one in a store")]
pub(crate) enum Commits {
    /// The writer's task runs the committer itself. This is for engines that never block.
    Inline(Mutex<Committer>),
    /// The committer runs on a dedicated thread.
    Thread(Mutex<Option<std::thread::JoinHandle<()>>>),
    /// This store is a mirror: the storage behind this handle performs the writes.
    Elsewhere(Arc<dyn Remote>),
}

struct Handle {
    shared: Arc<Shared>,
    commits: Commits,
}

impl Drop for Handle {
    /// Closes the store after its last handle is dropped: the committer finishes the queued writes and ends.
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// The store of one cluster. A clone is cheap and refers to the same store, which closes when [`Store::close`] is called or the last
/// clone is dropped. Reads take a short lock and see only published changes; writes go through the committer one batch at a time. A
/// store may also mirror storage that several servers share ([`Store::is_mirror`]): then its writes go to that storage, and a read that
/// must not be stale calls [`Store::catch_up`] first.
#[derive(Clone)]
pub struct Store {
    handle: Arc<Handle>,
}

impl Store {
    pub(crate) fn over(shared: Arc<Shared>, commits: Commits) -> Self {
        Self { handle: Arc::new(Handle { shared, commits }) }
    }

    /// A random identifier (UUID) assigned when the store was created. It is stored with the data.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.shared().identity
    }

    /// Announces a write that is being prepared; the announcement ends when the returned value is dropped. Writes that are under way at
    /// the same time share a batch, and so a sync. A store without such announcements takes each write as it arrives.
    pub fn expect_write(&self) -> ExpectedWrite {
        self.shared().queue.expect()
    }

    /// Performs one write. After the future was polled far enough to enter the queue, the write happens even if the future is dropped.
    ///
    /// # Errors
    /// Returns the precondition that failed, or [`StoreError::Engine`] if the batch could not be stored. In that case no part of the
    /// batch becomes visible.
    pub async fn commit(&self, write: Write) -> Result<Committed, StoreError> {
        if let Commits::Elsewhere(remote) = &self.handle.commits {
            return if self.shared().is_closed() { Err(StoreError::Closed) } else { remote.commit(write).await };
        }
        let answer = self.begin(write).await?;
        let answer = answer.await;
        for record in self.shared().recent.take_gone() {
            self.shared().samples.pack(&record);
        }
        answer.map_err(|_| StoreError::Closed)?
    }

    /// Whether this store mirrors storage that other servers also write. A read that must not be stale then calls
    /// [`Store::catch_up`] first.
    #[must_use]
    pub fn is_mirror(&self) -> bool {
        matches!(self.handle.commits, Commits::Elsewhere(_))
    }

    /// Waits until this store has every change that was written before the call. Returns at once unless the store is a mirror.
    ///
    /// # Errors
    /// Returns [`StoreError::Elsewhere`] if the mirrored storage cannot be reached.
    pub async fn catch_up(&self) -> Result<(), StoreError> {
        match &self.handle.commits {
            Commits::Elsewhere(remote) => remote.catch_up().await,
            Commits::Inline(_) | Commits::Thread(_) => Ok(()),
        }
    }

    /// The storage that this store mirrors, if it does.
    pub(crate) fn remote(&self) -> Option<&Arc<dyn Remote>> {
        match &self.handle.commits {
            Commits::Elsewhere(remote) => Some(remote),
            Commits::Inline(_) | Commits::Thread(_) => None,
        }
    }

    /// The node ports that the servers on the shared storage have recorded as in use, or `None` if the storage is not shared.
    ///
    /// # Errors
    /// See [`Store::catch_up`].
    pub async fn ports_in_use(&self) -> Result<Option<Vec<u16>>, StoreError> {
        match &self.handle.commits {
            Commits::Elsewhere(remote) => remote.ports_in_use().await.map(Some),
            Commits::Inline(_) | Commits::Thread(_) => Ok(None),
        }
    }

    /// Records node ports as in use or as released. If a port that must be free is in use, returns that port and records nothing.
    ///
    /// # Errors
    /// See [`Store::catch_up`].
    pub async fn change_ports(&self, change: PortChange) -> Result<Option<u16>, StoreError> {
        match &self.handle.commits {
            Commits::Elsewhere(remote) => remote.change_ports(change).await,
            Commits::Inline(_) | Commits::Thread(_) => Ok(None),
        }
    }

    /// Returns the record with this name. `namespace` is empty for cluster-scoped resources.
    #[must_use]
    pub fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Record>> {
        self.shared().state.read().get(resource, RecordName { namespace, name }).cloned()
    }

    /// Lists the current records of a resource: of one namespace or of all, after the (namespace, name) `start_after`, and at most
    /// `limit` of them. The cost is a few binary searches, independent of the number of records; the view is consistent.
    #[must_use]
    pub fn list(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        start_after: Option<(&str, &str)>,
        limit: Option<usize>,
    ) -> ListView {
        let (table, revision) = {
            let state = self.shared().state.read();
            (state.slot(resource).map(|slot| slot.table.clone()).unwrap_or_default(), state.revision)
        };
        ListView::new(table, revision, namespace, start_after, limit)
    }

    /// Lists records as [`Store::list`] does, as they were at an earlier revision. This serves continue tokens and exact matches. The
    /// cost is proportional to the number of changes since then.
    ///
    /// # Errors
    /// Returns [`StoreError::Compacted`] if the log does not reach back to `revision`, and [`StoreError::FutureRevision`] if the store
    /// has not reached it.
    pub fn list_at(
        &self,
        revision: u64,
        resource: Resource,
        namespace: Option<&str>,
        start_after: Option<(&str, &str)>,
        limit: Option<usize>,
    ) -> Result<ListView, StoreError> {
        let (mut table, events) = self.shared().state.read().rollback(resource, revision)?;
        take_back(&mut table, &events);
        Ok(ListView::new(table, revision, namespace, start_after, limit))
    }

    /// Why a resource cannot be decrypted now; `None` when it can be. Nothing of such a resource is shown, and writes of it fail with
    /// [`StoreError::Sealed`]. Its watchers have to list again once it can be read.
    #[must_use]
    pub fn locked(&self, resource: Resource) -> Option<SealError> {
        self.shared().locked.reason(resource)
    }

    /// All resources that cannot be decrypted now, and why.
    #[must_use]
    pub fn all_locked(&self) -> Vec<(Resource, SealError)> {
        self.shared().locked.all()
    }

    /// Decrypts what could not be decrypted when the store was opened, as soon as the key service answers. Run it as a task: it does
    /// not keep the store open by itself.
    pub fn run_unlock(&self) -> impl Future<Output = ()> + Send + 'static {
        let shared = Arc::clone(&self.handle.shared);
        // The follower of a mirror reads its records again.
        let mirrors = self.is_mirror();
        async move {
            while !mirrors && !shared.is_closed() && !shared.locked.all().is_empty() {
                tokio::time::sleep(Duration::from_secs(UNLOCK_EVERY_S)).await;
                let of_lane = Arc::clone(&shared);
                match UNLOCK.run(move || of_lane.unlock()).await {
                    Ok(Ok(records)) => {
                        tracing::info!(records, "the locked resources can be decrypted again; serving them")
                    }
                    Ok(Err(error)) => tracing::debug!(%error, "the locked resources cannot be decrypted yet"),
                    Err(error) => tracing::warn!(%error, "the locked resources cannot be decrypted"),
                }
            }
        }
    }

    /// A number that changes with every write to a record of the resource. A caller that has decoded all records uses
    /// it to detect that nothing has changed. It is valid only in this process.
    #[must_use]
    pub fn version(&self, resource: Resource) -> u64 {
        self.shared().state.read().slot(resource).map_or(0, |slot| slot.table.version())
    }

    /// The number of records of a resource.
    #[must_use]
    pub fn count(&self, resource: Resource) -> usize {
        self.shared().state.read().slot(resource).map_or(0, |slot| slot.table.len())
    }

    /// The resources that have records, each with the number of its records (for `apiserver_storage_objects`).
    #[must_use]
    pub fn counts(&self) -> Vec<(Resource, usize)> {
        let state = self.shared().state.read();
        let mut counts: Vec<_> = state.slots().map(|(resource, slot)| (resource, slot.table.len())).collect();
        counts.retain(|(_, count)| *count > 0);
        counts.sort_unstable();
        counts
    }

    /// Returns the counters of the committer since the store was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared().counters.read()
    }

    /// Whether the store accepts writes, and if not, why. Readiness and liveness checks read this; it is cheap.
    #[must_use]
    pub fn health(&self) -> Health {
        let locked = self.all_locked().into_iter().next().map(|(r, why)| format!("{r} cannot be decrypted: {why}"));
        Health { locked, ..self.shared().health.read() }
    }

    /// Resolves with the reason when the committer has ended by a fault. No write can succeed in this process after that, so the
    /// process should exit and be restarted. The future does not resolve otherwise and does not keep the store open.
    pub fn failed(&self) -> impl Future<Output = String> + Send + 'static {
        let mut failure = self.shared().health.subscribe();
        async move {
            let why = failure.wait_for(Option::is_some).await.map(|why| why.clone().unwrap_or_default());
            match why {
                Ok(why) => why,
                // The store was closed without a fault.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// The revision of the last published write. Every write that this process acknowledged is at this revision or below, so a read
    /// after it is consistent.
    #[must_use]
    pub fn current_revision(&self) -> u64 {
        self.shared().state.read().revision
    }

    /// Waits until the store has reached `revision`, and returns the revision that it has then. The caller bounds the wait.
    ///
    /// # Errors
    /// Returns [`StoreError::Closed`] if the store closes first.
    pub async fn wait_for_revision(&self, revision: u64) -> Result<u64, StoreError> {
        self.shared().wait_for_revision(revision).await
    }

    /// Watches a resource for changes after `from`. If `from` is the revision of a list, the list and the watch together miss no change
    /// and repeat none.
    ///
    /// # Errors
    /// Returns [`StoreError::Compacted`] if the log does not reach back to `from`.
    pub fn watch(&self, resource: Resource, from: u64) -> Result<Cursor, StoreError> {
        self.watch_scope(resource, WatchScope::All, from)
    }

    /// Watches a part of a resource for changes after `from`, as [`Store::watch`] does. Changes outside the scope do not wake the
    /// cursor.
    ///
    /// # Errors
    /// Returns [`StoreError::Compacted`] if the log does not reach back to `from`.
    pub fn watch_scope(&self, resource: Resource, scope: WatchScope, from: u64) -> Result<Cursor, StoreError> {
        Cursor::open(&self.handle.shared, resource, scope, from)
    }

    /// Deletes the expired records in batches and returns how many were deleted.
    ///
    /// # Errors
    /// Returns [`StoreError::Engine`] or [`StoreError::Closed`]. Records that were not deleted remain due.
    pub async fn expire_due(&self) -> Result<usize, StoreError> {
        let now_s = self.shared().now_s();
        let mut gone = 0;
        loop {
            let due = self.shared().expiry.due(now_s);
            if due.is_empty() {
                return Ok(gone);
            }
            let mut answers = Vec::with_capacity(due.len());
            for record in due {
                let at = Precondition::AtRevision(record.revision());
                let write = Write::delete(record.key().clone(), at).relaxed();
                answers.push(self.begin(write).await?);
            }
            for answer in answers {
                match answer.await.map_err(|_| StoreError::Closed)? {
                    Ok(_) => gone += 1,
                    // The record was replaced or deleted meanwhile. A new expiry time was noted with the new record.
                    Err(StoreError::NotFound | StoreError::Conflict { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Deletes expired records while the store is open, and sleeps while there are none. The caller runs this future as a task; it does
    /// not keep the store open.
    pub fn run_expiry(&self) -> impl Future<Output = ()> + Send + 'static {
        let (shared, handle) = (Arc::clone(&self.handle.shared), Arc::downgrade(&self.handle));
        async move {
            while !shared.is_closed() {
                let Some(next_s) = shared.expiry.next_s() else {
                    shared.expiry.first.notified().await;
                    continue;
                };
                let wait_s = next_s.saturating_sub(shared.now_s()).max(EXPIRY_PASS_EVERY_S);
                tokio::time::sleep(Duration::from_secs(wait_s)).await;
                let Some(handle) = handle.upgrade() else { return };
                match (Self { handle }).expire_due().await {
                    Ok(gone) => tracing::debug!(gone, "deleted expired records"),
                    Err(StoreError::Closed) => return,
                    Err(error) => tracing::warn!(%error, "deleting expired records failed; retrying"),
                }
            }
        }
    }

    /// Writes a snapshot of the store into the directory `to`, which must be empty or missing. The snapshot is a complete store with the
    /// encryption of the original. It is made from memory, so writes continue meanwhile. Blocks on the disk. Call
    /// [`Store::catch_up`] before, if the store is a mirror; its events then expire after another [`crate::limits::EVENT_TTL_S`].
    ///
    /// # Errors
    /// Returns [`StoreError::Engine`] or [`StoreError::Sealed`]; then there is no snapshot.
    pub fn save(&self, to: &Path) -> Result<Contents, StoreError> {
        if let Some((_, reason)) = self.all_locked().into_iter().next() {
            return Err(StoreError::Sealed(reason));
        }
        let (revision, tables) = self.shared().state.read().tables();
        saved::save(to, (self.identity(), revision), &tables, self.shared().writers.at_rest(), self.is_mirror())
    }

    /// Whether the store would write this record differently now than when it was stored: with another key, or encrypted instead of
    /// unencrypted. An update that changes nothing is then worth writing.
    #[must_use]
    pub fn is_stale(&self, record: &Record) -> bool {
        self.shared().writers.is_stale(record)
    }

    /// Finishes the queued writes, syncs, and releases the files. Later writes return [`StoreError::Closed`].
    pub async fn close(&self) {
        self.shared().close();
        match &self.handle.commits {
            Commits::Elsewhere(_) => {}
            Commits::Inline(committer) => committer.lock().finish(),
            Commits::Thread(thread) => {
                let Some(thread) = thread.lock().take() else { return };
                // The store's health has the fault that the thread may have had. Here it matters only that the thread has ended.
                let _ended = CLOSING.run(move || thread.join().is_ok()).await;
            }
        }
    }

    /// Queues a write and returns the receiver of its result.
    async fn begin(&self, write: Write) -> Result<oneshot::Receiver<Result<Committed, StoreError>>, StoreError> {
        let (reply, answer) = oneshot::channel();
        match &self.handle.commits {
            Commits::Inline(_) if self.shared().is_closed() => return Err(StoreError::Closed),
            Commits::Inline(committer) => committer.lock().commit(vec![Pending::new(write, reply)]),
            Commits::Thread(_) => self.shared().queue.push(write, reply).await?,
            // The shared storage itself deletes what expires.
            Commits::Elsewhere(_) => return Err(StoreError::Closed),
        }
        Ok(answer)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.handle.shared
    }
}
