//! The store's face: opening, reading, watching, and handing writes to the committer.
#![allow(clippy::disallowed_methods, reason = "blocking: on the committer's own thread; opened in the lane for files")]

use std::net::IpAddr;
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
use crate::key::{Place, Resource};
use crate::limits::{EXPIRY_PASS_EVERY_S, UNLOCK_EVERY_S};
use crate::queue::{ExpectedWrite, Pending};
use crate::record::Record;
use crate::remote::{PortChange, Remote};
use crate::saved::{self, Contents};
use crate::shared::Shared;
use crate::state::{ListView, take_back};
use crate::stats::Stats;
use crate::write::{Committed, Precondition, Write};

/// Waiting for the committer's last sync must not hold up a runtime thread.
static CLOSING: Lane = Lane::new("store-close", 1);
/// Where a key service is waited for.
static UNLOCK: Lane = Lane::new("store-unlock", 1);

/// Where commits happen.
#[expect(clippy::large_enum_variant, reason = "there is one in a store")]
pub(crate) enum Commits {
    /// In the writer itself, for engines that never block.
    Inline(Mutex<Committer>),
    /// On a thread of its own.
    Thread(Mutex<Option<std::thread::JoinHandle<()>>>),
    /// Where the truth is that this store mirrors.
    Elsewhere(Arc<dyn Remote>),
}

struct Handle {
    shared: Arc<Shared>,
    commits: Commits,
}

impl Drop for Handle {
    /// The last handle is gone: the committer finishes what is queued and ends.
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// The store of one cluster. Cheap to clone; it closes when the last clone is dropped, or by [`Store::close`].
#[derive(Clone)]
pub struct Store {
    handle: Arc<Handle>,
}

impl Store {
    pub(crate) fn over(shared: Arc<Shared>, commits: Commits) -> Self {
        Self { handle: Arc::new(Handle { shared, commits }) }
    }

    /// A name made when the store was created; it stays with the data.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.shared().identity
    }

    /// Says that a write is being prepared, until what is returned is dropped: writes that are on their way at the same time
    /// share a batch, and so a sync. A store that is not told of writes takes each as it comes.
    pub fn expect_write(&self) -> ExpectedWrite {
        self.shared().queue.expect()
    }

    /// Performs one write. Once this was polled far enough to enter the queue, the write happens even if the future is
    /// dropped.
    ///
    /// # Errors
    /// The refused precondition, or [`StoreError::Engine`] if the batch could not be stored: then nothing of it is
    /// visible to anybody.
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

    /// Whether others may write what this store holds: then a read that must not be stale asks for [`Store::catch_up`] first.
    #[must_use]
    pub fn is_mirror(&self) -> bool {
        matches!(self.handle.commits, Commits::Elsewhere(_))
    }

    /// Waits until everything is here that anybody had written when this was called. At once where nobody else writes.
    ///
    /// # Errors
    /// [`StoreError::Elsewhere`]: what is mirrored cannot be asked.
    pub async fn catch_up(&self) -> Result<(), StoreError> {
        match &self.handle.commits {
            Commits::Elsewhere(remote) => remote.catch_up().await,
            Commits::Inline(_) | Commits::Thread(_) => Ok(()),
        }
    }

    /// Tells other servers that work on what this store mirrors that the one at this address lives, for so long.
    ///
    /// # Errors
    /// As of [`Store::catch_up`].
    pub async fn announce(&self, server: IpAddr, life: Duration) -> Result<(), StoreError> {
        match &self.handle.commits {
            Commits::Elsewhere(remote) => remote.announce(server, life).await,
            Commits::Inline(_) | Commits::Thread(_) => Ok(()),
        }
    }

    /// Takes back what [`Store::announce`] said. Answers whether anything had been said.
    ///
    /// # Errors
    /// As of [`Store::catch_up`].
    pub async fn withdraw(&self, server: IpAddr) -> Result<bool, StoreError> {
        match &self.handle.commits {
            Commits::Elsewhere(remote) => remote.withdraw(server).await,
            Commits::Inline(_) | Commits::Thread(_) => Ok(false),
        }
    }

    /// The servers that live, by what they announced; `None` where there can be only one.
    ///
    /// # Errors
    /// As of [`Store::catch_up`].
    pub async fn living(&self) -> Result<Option<Vec<IpAddr>>, StoreError> {
        match &self.handle.commits {
            Commits::Elsewhere(remote) => remote.living().await.map(Some),
            Commits::Inline(_) | Commits::Thread(_) => Ok(None),
        }
    }

    /// The node ports that servers which share a storage have noted as in use; `None` where there can be only one.
    ///
    /// # Errors
    /// As of [`Store::catch_up`].
    pub async fn ports_in_use(&self) -> Result<Option<Vec<u16>>, StoreError> {
        match &self.handle.commits {
            Commits::Elsewhere(remote) => remote.ports_in_use().await.map(Some),
            Commits::Inline(_) | Commits::Thread(_) => Ok(None),
        }
    }

    /// Notes node ports as in use, or no more. Answers one that was to be free and is not: then nothing was noted.
    ///
    /// # Errors
    /// As of [`Store::catch_up`].
    pub async fn change_ports(&self, change: PortChange) -> Result<Option<u16>, StoreError> {
        match &self.handle.commits {
            Commits::Elsewhere(remote) => remote.change_ports(change).await,
            Commits::Inline(_) | Commits::Thread(_) => Ok(None),
        }
    }

    /// The record under a name; `namespace` is empty for cluster-scoped resources.
    #[must_use]
    pub fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Record>> {
        self.shared().state.read().get(resource, Place { namespace, name }).cloned()
    }

    /// The records of a resource, now: of one namespace or all, after the place `start_after` (namespace, name), at
    /// most `limit` of them. Takes constant time but for a few binary searches; the view is consistent.
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

    /// [`Store::list`] as it was at an earlier revision, for continue tokens and exact matches. Costs in proportion to
    /// what changed since.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] if the log does not reach back so far; [`StoreError::FutureRevision`].
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
        // What is mirrored is read again by whoever follows it.
        let mirrors = self.is_mirror();
        async move {
            while !mirrors && !shared.is_closed() && !shared.locked.all().is_empty() {
                tokio::time::sleep(Duration::from_secs(UNLOCK_EVERY_S)).await;
                let of_lane = Arc::clone(&shared);
                match UNLOCK.run(move || of_lane.unlock()).await {
                    Ok(Ok(records)) => tracing::info!(records, "what was locked can be decrypted, and is served"),
                    Ok(Err(error)) => tracing::debug!(%error, "the locked resources cannot be decrypted yet"),
                    Err(error) => tracing::warn!(%error, "the locked resources cannot be decrypted"),
                }
            }
        }
    }

    /// A number that is another one whenever a record of the resource was made, changed or removed, so that whoever has decoded
    /// them all can tell at once that nothing has changed. Holds within this process only.
    #[must_use]
    pub fn version(&self, resource: Resource) -> u64 {
        self.shared().state.read().slot(resource).map_or(0, |slot| slot.table.version())
    }

    /// The number of records of a resource.
    #[must_use]
    pub fn count(&self, resource: Resource) -> usize {
        self.shared().state.read().slot(resource).map_or(0, |slot| slot.table.len())
    }

    /// The resources that have records, and how many (for `apiserver_storage_objects`).
    #[must_use]
    pub fn counts(&self) -> Vec<(Resource, usize)> {
        let state = self.shared().state.read();
        let mut counts: Vec<_> = state.slots().map(|(resource, slot)| (resource, slot.table.len())).collect();
        counts.retain(|(_, count)| *count > 0);
        counts.sort_unstable();
        counts
    }

    /// What the committer has done since the store was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared().counters.read()
    }

    /// Whether writes are taken, and what stands in their way: for readiness and liveness checks. Cheap.
    #[must_use]
    pub fn health(&self) -> Health {
        let locked = self.all_locked().into_iter().next().map(|(r, why)| format!("{r} cannot be decrypted: {why}"));
        Health { locked, ..self.shared().health.read() }
    }

    /// Resolves with the reason when the committer has ended by a fault of its own: no write will ever succeed again in
    /// this process, so it should end and be started anew. Does not resolve otherwise, and does not keep the store open.
    pub fn failed(&self) -> impl Future<Output = String> + Send + 'static {
        let mut told = self.shared().health.subscribe();
        async move {
            let why = told.wait_for(Option::is_some).await.map(|why| why.clone().unwrap_or_default());
            match why {
                Ok(why) => why,
                // The store is gone without a fault.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// The revision of the last published write. Everything this process acknowledged is at or below it, so a read
    /// after it is a consistent read.
    #[must_use]
    pub fn current_revision(&self) -> u64 {
        self.shared().state.read().revision
    }

    /// Waits until the store is at `revision` or later. The caller bounds the wait.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub async fn wait_for_revision(&self, revision: u64) -> Result<u64, StoreError> {
        self.shared().wait_for_revision(revision).await
    }

    /// Watches a resource for changes after `from`: give it the revision of a list and nothing is
    /// missed or seen twice.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] if the log does not reach back to `from`.
    pub fn watch(&self, resource: Resource, from: u64) -> Result<Cursor, StoreError> {
        Cursor::open(&self.handle.shared, resource, from)
    }

    /// Deletes records whose time has come, in batches, and returns how many went.
    ///
    /// # Errors
    /// [`StoreError::Engine`], [`StoreError::Closed`]; what was not deleted is still due.
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
                    // Replaced or deleted since: its new time is noted with the new record.
                    Err(StoreError::NotFound | StoreError::Conflict { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Deletes expired records for as long as the store is open; sleeps while there are none. Run it as a task: it does
    /// not keep the store open by itself.
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

    /// Writes a copy of the store as it is now into the empty or missing directory `to`: a store of its own, encrypted as the
    /// original is. It is made of what is in memory, so writers go on meanwhile. Blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::Engine`], [`StoreError::Sealed`]: there is no copy then.
    pub fn save(&self, to: &Path) -> Result<Contents, StoreError> {
        if let Some((_, reason)) = self.all_locked().into_iter().next() {
            return Err(StoreError::Sealed(reason));
        }
        let (revision, tables) = self.shared().state.read().tables();
        saved::save(to, (self.identity(), revision), &tables, self.shared().writers.at_rest())
    }

    /// Whether a record would be written in another way now than it was: with another key, or no more in the clear. An
    /// update that changes nothing is then worth writing.
    #[must_use]
    pub fn is_stale(&self, record: &Record) -> bool {
        self.shared().writers.is_stale(record)
    }

    /// Finishes queued writes, syncs, and releases the files. Further writes answer [`StoreError::Closed`].
    pub async fn close(&self) {
        self.shared().close();
        match &self.handle.commits {
            Commits::Elsewhere(_) => {}
            Commits::Inline(committer) => committer.lock().finish(),
            Commits::Thread(thread) => {
                let Some(thread) = thread.lock().take() else { return };
                // Its fault, if it had one, is in the store's health; that it has ended is all that matters here.
                let _ended = CLOSING.run(move || thread.join().is_ok()).await;
            }
        }
    }

    /// Queues a write and returns where its answer will be.
    async fn begin(&self, write: Write) -> Result<oneshot::Receiver<Result<Committed, StoreError>>, StoreError> {
        let (reply, answer) = oneshot::channel();
        match &self.handle.commits {
            Commits::Inline(_) if self.shared().is_closed() => return Err(StoreError::Closed),
            Commits::Inline(committer) => committer.lock().commit(vec![Pending::new(write, reply)]),
            Commits::Thread(_) => self.shared().queue.push(write, reply).await?,
            // What ends by itself, ends where it is kept.
            Commits::Elsewhere(_) => return Err(StoreError::Closed),
        }
        Ok(answer)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.handle.shared
    }
}
