//! The store's face: opening, reading, watching, and handing writes to the committer.
#![allow(clippy::disallowed_methods, reason = "blocking: on the committer's own thread; opened in the lane for files")]

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kelson_meta::{Clock, SystemClock};
use kelson_tasks::Lane;
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use crate::at_rest::{AtRest, Writer, Writers};
use crate::commit::{Committer, Room};
use crate::cursor::Cursor;
use crate::engine::format::{self, FORMAT, FORMAT_UNCHECKED, Mark};
use crate::engine::{Engine, EngineError, MemoryEngine, SqliteEngine};
use crate::error::StoreError;
use crate::event::EventKind;
use crate::expiry::Expiry;
use crate::health::{Health, HealthBoard};
use crate::key::{Place, Resource};
use crate::limits::{EXPIRY_PASS_EVERY_S, LOG_BYTES_MAX, STORE_BYTES_MAX};
use crate::loaded::{Loaded, load};
use crate::queue::{Pending, Queue, Taken};
use crate::record::Record;
use crate::samples::Samples;
use crate::saved::{self, Contents};
use crate::shared::Shared;
use crate::state::{ListView, State, take_back};
use crate::stats::{Counters, Stats};
use crate::write::{Committed, Precondition, Write};

/// How to open a store.
#[derive(Clone)]
pub struct StoreOptions {
    /// Bytes that the watch log may keep alive beyond the current state.
    pub log_bytes_max: usize,
    /// Bytes that all records together may take; writes that would make them more are refused, others go on.
    pub bytes_max: usize,
    /// The clock for log ages and expiry.
    pub clock: Arc<dyn Clock>,
    /// Encrypts records on their way to the disk; without one they are written as they are, and an encrypted one is a fault.
    pub at_rest: Option<Arc<dyn AtRest>>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { log_bytes_max: LOG_BYTES_MAX, bytes_max: STORE_BYTES_MAX, clock: Arc::new(SystemClock), at_rest: None }
    }
}

/// Waiting for the committer's last sync must not hold up a runtime thread.
static CLOSING: Lane = Lane::new("store-close", 1);

/// Where commits happen.
enum Commits {
    /// In the writer itself, for engines that never block.
    Inline(Mutex<Committer>),
    /// On a thread of its own.
    Thread(Mutex<Option<std::thread::JoinHandle<()>>>),
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
    /// An empty store that ends with the process.
    #[must_use]
    pub fn in_memory(options: StoreOptions) -> Self {
        Self::open(Box::new(MemoryEngine), options).expect("the memory engine loads nothing, which cannot fail")
    }

    /// Opens the durable store in a directory, or makes one. Blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::Open`]: the directory is in use, damaged, of another format, or cannot be written.
    pub fn open_dir(dir: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let engine = SqliteEngine::open(dir).map_err(|error| StoreError::Open(Arc::new(error)))?;
        Self::open(Box::new(engine), options)
    }

    /// Opens a store on an engine and loads it. Blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::Open`] if the engine cannot be read or holds another format.
    pub fn open(mut engine: Box<dyn Engine>, options: StoreOptions) -> Result<Self, StoreError> {
        let open = |error| StoreError::Open(Arc::new(error));
        let at_rest = options.at_rest.as_deref();
        let mut loaded = load(&mut *engine, at_rest).map_err(open)?;
        let boot = boot_id();
        let trusted = loaded.running.is_empty() || loaded.running == boot;
        if !trusted {
            tracing::warn!("the machine stopped while the store was open; watchers have to list again");
            loaded.revision = loaded.revision.max(loaded.reserved);
        }
        let mut marks = vec![Mark::Running(boot).op()];
        let identity = loaded.identity.take().unwrap_or_else(|| {
            let identity = uuid::Uuid::new_v4().to_string();
            marks.push(Mark::Format(FORMAT).op());
            marks.push(Mark::Identity(identity.clone()).op());
            identity
        });
        if loaded.format == FORMAT_UNCHECKED {
            add_checksums(&mut *engine, &loaded).map_err(open)?;
            marks.push(Mark::Format(FORMAT).op());
        }
        engine.append(&marks, true).map_err(open)?;

        let base_floor = if trusted { 0 } else { loaded.revision };
        let mut state = State::new(loaded.revision, base_floor, options.log_bytes_max);
        let (expiry, samples, mut bytes) = (Expiry::default(), Samples::default(), 0);
        let writers = Writers::new(options.at_rest);
        loaded.records.sort_unstable_by(|(a, _), (b, _)| {
            let (a, b) = (a.key(), b.key());
            let there = Place { namespace: &b.namespace, name: &b.name };
            a.resource.cmp(&b.resource).then_with(|| a.cmp_place(there))
        });
        for (record, writer) in loaded.records {
            expiry.note(EventKind::Added, &record, None);
            writers.note(EventKind::Added, &record, writer);
            bytes += record.cost();
            samples.pack(&record);
            let resource = record.key().resource;
            state.slot_mut(resource).table.put(record);
        }
        for (resource, floor) in loaded.floors {
            state.raise_floor(resource, floor.max(base_floor));
        }
        let shared = Arc::new(Shared {
            state: RwLock::new(state),
            queue: Queue::default(),
            frames: Arc::default(),
            recent: crate::recent::RecentRecords::default(),
            samples,
            expiry,
            writers,
            counters: Counters::default(),
            health: HealthBoard::default(),
            clock: options.clock,
            identity,
            closed: AtomicBool::new(false),
        });
        let blocks = engine.blocks();
        let committer =
            Committer::new(engine, Arc::clone(&shared), loaded.reserved, Room { used: bytes, max: options.bytes_max });
        let commits = if blocks {
            let thread = std::thread::Builder::new().name("store-commit".into()).spawn(move || run(committer));
            let thread = thread.map_err(|source| open(EngineError::Io { context: "start a thread", source }))?;
            Commits::Thread(Mutex::new(Some(thread)))
        } else {
            Commits::Inline(Mutex::new(committer))
        };
        Ok(Self { handle: Arc::new(Handle { shared, commits }) })
    }

    /// A name made when the store was created; it stays with the data.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.shared().identity
    }

    /// Performs one write. Once this was polled far enough to enter the queue, the write happens even if the future is
    /// dropped.
    ///
    /// # Errors
    /// The refused precondition, or [`StoreError::Engine`] if the batch could not be stored: then nothing of it is
    /// visible to anybody.
    pub async fn commit(&self, write: Write) -> Result<Committed, StoreError> {
        let answer = self.begin(write).await?;
        let answer = answer.await;
        for record in self.shared().recent.take_gone() {
            self.shared().samples.pack(&record);
        }
        answer.map_err(|_| StoreError::Closed)?
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
        self.shared().health.read()
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
        let mut changed = self.shared().state.read().changed.subscribe();
        loop {
            changed.borrow_and_update();
            let current = self.current_revision();
            if current >= revision {
                return Ok(current);
            }
            if self.shared().is_closed() {
                return Err(StoreError::Closed);
            }
            changed.changed().await.map_err(|_| StoreError::Closed)?;
        }
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
                    Ok(gone) => tracing::debug!(gone, "expired records deleted"),
                    Err(StoreError::Closed) => return,
                    Err(error) => tracing::warn!(%error, "expired records could not be deleted"),
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
        }
        Ok(answer)
    }

    fn shared(&self) -> &Shared {
        &self.handle.shared
    }
}

/// The committer's thread. A panic of its own is a fault nobody can mend here: it is told, and writers are refused at
/// once instead of waiting for answers that cannot come.
fn run(committer: Committer) {
    let shared = committer.shared();
    if let Err(payload) = std::panic::catch_unwind(AssertUnwindSafe(|| committer.run())) {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        tracing::error!(panic = text, "the store's committer panicked; nothing can be written any more");
        shared.health.ended(&format!("the store's committer panicked: {text}"));
        shared.close();
        // Whoever is still queued hears that the store is closed.
        while let Taken::Batch(batch) = shared.queue.take(None) {
            drop(batch);
        }
    }
}

/// Writes rows that an older version wrote without a checksum anew, with one.
fn add_checksums(engine: &mut dyn Engine, loaded: &Loaded) -> Result<(), EngineError> {
    const ROWS_AT_ONCE: usize = 1000;
    tracing::info!(records = loaded.records.len(), "records of an older version get their checksums");
    for some in loaded.records.chunks(ROWS_AT_ONCE) {
        let clear = some.iter().filter(|(_, writer)| *writer == Writer::CLEAR);
        let ops = clear.map(|(record, _)| Ok(format::put(record, None)?.0)).collect::<Result<Vec<_>, _>>();
        let ops =
            ops.map_err(|why: crate::at_rest::SealError| EngineError::Other { context: "upgrade", reason: why.0 })?;
        engine.append(&ops, true)?;
    }
    Ok(())
}

/// Identifies this boot of the machine: bytes that the kernel took are there as long as it is the same.
fn boot_id() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map_or_else(|_| uuid::Uuid::new_v4().to_string(), |text| text.trim().to_owned())
}
