//! Opens a store: in memory, in a directory, or on a given engine.
#![allow(clippy::disallowed_methods, reason = "blocking: opened in the lane for files, and the committer's own thread")]

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kelson_meta::{Clock, SystemClock};
use parking_lot::{Mutex, RwLock};

use crate::at_rest::{AtRest, Writer, Writers};
use crate::commit::Committer;
use crate::engine::format::{self, FORMAT, FORMAT_UNCHECKED, Mark};
use crate::engine::{Engine, EngineError, MemoryEngine, Op, SqliteEngine};
use crate::error::StoreError;
use crate::event::EventKind;
use crate::expiry::Expiry;
use crate::health::HealthBoard;
use crate::key::RecordName;
use crate::limits::{LOG_BYTES_MAX, NAMESPACE_PART, STORE_BYTES_MAX};
use crate::loaded::{Loaded, load};
use crate::locked::LockedResources;
use crate::queue::{Queue, WakeReason};
use crate::room::Room;
use crate::samples::Samples;
use crate::shared::Shared;
use crate::state::State;
use crate::stats::Counters;
use crate::store::{Commits, Store};
use crate::waiting::RevisionWaiters;

/// The options for opening a store.
#[derive(Clone)]
pub struct StoreOptions {
    /// The most bytes that the watch log may keep in memory beyond the current state.
    pub log_bytes_max: usize,
    /// The most bytes that all records together may have. Writes that would exceed this are rejected; others succeed.
    pub bytes_max: usize,
    /// Bytes that the records of one namespace may take, so that one namespace cannot take all the room.
    pub namespace_bytes_max: usize,
    /// The clock for log ages and expiry.
    pub clock: Arc<dyn Clock>,
    /// Whether the store must exist already. If it is missing, its data was lost and opening fails.
    pub must_exist: bool,
    /// Encrypts records before they are written to the disk. Without it records are written unencrypted, and an encrypted record on the
    /// disk is an error.
    pub at_rest: Option<Arc<dyn AtRest>>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            log_bytes_max: LOG_BYTES_MAX,
            bytes_max: STORE_BYTES_MAX,
            namespace_bytes_max: STORE_BYTES_MAX / NAMESPACE_PART,
            clock: Arc::new(SystemClock),
            must_exist: false,
            at_rest: None,
        }
    }
}

impl Store {
    /// Opens an empty store that lives in memory and is lost with the process.
    #[must_use]
    pub fn in_memory(options: StoreOptions) -> Self {
        Self::open(Box::new(MemoryEngine), options).expect("the memory engine loads nothing, which cannot fail")
    }

    /// Opens the durable store in a directory, or creates it. Blocks on the disk.
    ///
    /// # Errors
    /// Returns [`StoreError::Open`] if the directory is in use, damaged, of another format, or not writable.
    pub fn open_dir(dir: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let file = dir.join(SqliteEngine::FILE);
        let open = || {
            if options.must_exist && std::fs::metadata(&file).map_or(0, |about| about.len()) == 0 {
                return Err(EngineError::Missing(file.clone()));
            }
            Self::open_engine(Box::new(SqliteEngine::open(dir)?), options)
        };
        open().map_err(|error| StoreError::Open(Arc::new(error.of(&file))))
    }

    /// Opens a store on an engine and loads its records. Blocks on the disk.
    ///
    /// # Errors
    /// Returns [`StoreError::Open`] if the engine cannot be read or has another format.
    pub fn open(engine: Box<dyn Engine>, options: StoreOptions) -> Result<Self, StoreError> {
        Self::open_engine(engine, options).map_err(|error| StoreError::Open(Arc::new(error)))
    }

    fn open_engine(mut engine: Box<dyn Engine>, options: StoreOptions) -> Result<Self, EngineError> {
        let at_rest = options.at_rest.as_deref();
        let samples = Samples::default();
        let mut loaded = load(&mut *engine, at_rest, &samples)?;
        if options.must_exist && loaded.identity.is_none() {
            return Err(EngineError::Missing(engine.path()));
        }
        let boot = boot_id();
        let trusted = loaded.running.is_empty() || loaded.running == boot;
        if !trusted {
            tracing::warn!("the store was not closed before the machine stopped; watchers must list again");
            loaded.revision = loaded.revision.max(loaded.reserved);
        }
        let (identity, marks) = begin(&mut *engine, &mut loaded, boot)?;
        if let Err(error) = engine.set_erasing(at_rest.is_some()) {
            tracing::warn!(%error, "erasing unencrypted data failed");
        }
        engine.keep_room();

        let base_floor = if trusted { 0 } else { loaded.revision };
        let mut state = State::new(loaded.revision, base_floor, options.log_bytes_max);
        let expiry = Expiry::default();
        let mut room = Room::new(options.bytes_max, options.namespace_bytes_max);
        let writers = Writers::new(options.at_rest);
        loaded.records.sort_unstable_by(|(a, _), (b, _)| {
            let (a, b) = (a.key(), b.key());
            let there = RecordName { namespace: &b.namespace, name: &b.name };
            a.resource.cmp(&b.resource).then_with(|| a.cmp_place(there))
        });
        for (record, writer) in loaded.records {
            expiry.note(EventKind::Added, &record, None);
            writers.note(EventKind::Added, &record, writer);
            room.add(&record);
            let resource = record.key().resource;
            state.slot_mut(resource).table.put(record);
        }
        room.add_bytes(loaded.locked_rows.iter().map(|row| row.value.len()).sum());
        for (resource, why) in &loaded.locked {
            tracing::error!(%resource, reason = %why, "the KMS plugin is unavailable; the resource is locked until it responds");
        }
        for (resource, floor) in loaded.floors {
            state.raise_floor(resource, floor.max(base_floor));
        }
        let shared = Arc::new(Shared {
            state: RwLock::new(state),
            queue: Queue::default(),
            frames: Arc::default(),
            waiters: RevisionWaiters::default(),
            recent: crate::recent::RecentRecords::default(),
            samples,
            expiry,
            writers,
            locked: LockedResources::with_rows(loaded.locked_rows, loaded.format, loaded.locked),
            counters: Counters::default(),
            health: HealthBoard::default(),
            clock: options.clock,
            identity,
            closed: AtomicBool::new(false),
        });
        if !marks.is_empty() {
            shared.health.disk(Some("the disk was full at the start".to_owned()));
        }
        let commits = commits(engine, Arc::clone(&shared), (loaded.reserved, room, marks))?;
        Ok(Self::over(shared, commits))
    }
}

/// Starts the committer's thread, or returns the committer itself for an engine that never blocks.
fn commits(
    engine: Box<dyn Engine>,
    shared: Arc<Shared>,
    (reserved, room, marks): (u64, Room, Vec<Op>),
) -> Result<Commits, EngineError> {
    let blocks = engine.blocks();
    let committer = Committer::new(engine, shared, reserved, room, marks);
    if !blocks {
        return Ok(Commits::Inline(Mutex::new(committer)));
    }
    let thread = std::thread::Builder::new().name("store-commit".into()).spawn(move || run(committer));
    let thread = thread.map_err(|source| EngineError::Io { context: "start a thread", source })?;
    Ok(Commits::Thread(Mutex::new(Some(thread))))
}

/// Marks the store as open in this boot, and a new store with its format and identity. Returns the identity, and the marks that could
/// not be written because the disk is full.
fn begin(engine: &mut dyn Engine, loaded: &mut Loaded, boot: String) -> Result<(String, Vec<Op>), EngineError> {
    let is_new = loaded.identity.is_none();
    let mut marks = vec![Mark::Running(boot).op()];
    let identity = loaded.identity.take().unwrap_or_else(|| {
        let identity = uuid::Uuid::new_v4().to_string();
        marks.push(Mark::Format(FORMAT).op());
        marks.push(Mark::Identity(identity.clone()).op());
        identity
    });
    if loaded.format == FORMAT_UNCHECKED {
        add_checksums(engine, loaded)?;
        marks.push(Mark::Format(FORMAT).op());
    }
    match engine.append(&marks, true) {
        Ok(()) => marks.clear(),
        // The existing records can be read, and deletions may free space.
        Err(error) if error.is_full_disk() && !is_new => {
            tracing::error!(%error, "the disk is full; opening the store for reads and deletions only");
        }
        Err(error) => return Err(error),
    }
    Ok((identity, marks))
}

/// The body of the committer's thread. After a panic of the committer the store cannot continue: this logs the panic,
/// records it in the store's health and closes the store, so that writers get an error at once instead of waiting for
/// an answer that cannot come.
fn run(committer: Committer) {
    let shared = committer.shared();
    if let Err(payload) = std::panic::catch_unwind(AssertUnwindSafe(|| committer.run())) {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        tracing::error!(panic = text, "the store's committer panicked; rejecting writes until a restart");
        shared.health.ended(&format!("the store's committer panicked: {text}"));
        shared.close();
        // Dropping the batches makes the queued writers return with the error that the store is closed.
        while let WakeReason::Batch(batch) = shared.queue.take(None) {
            drop(batch);
        }
    }
}

/// Rewrites records that an older version wrote without a checksum, with one.
fn add_checksums(engine: &mut dyn Engine, loaded: &Loaded) -> Result<(), EngineError> {
    const ROWS_AT_ONCE: usize = 1000;
    tracing::info!(records = loaded.records.len(), "adding checksums to records of an older version");
    for some in loaded.records.chunks(ROWS_AT_ONCE) {
        let clear = some.iter().filter(|(_, writer)| *writer == Writer::CLEAR);
        let ops = clear.map(|(record, _)| Ok(format::put(record, None)?.0)).collect::<Result<Vec<_>, _>>();
        let ops = ops.map_err(|why: crate::at_rest::SealError| EngineError::Other {
            context: "upgrade",
            reason: why.to_string(),
        })?;
        engine.append(&ops, true)?;
    }
    Ok(())
}

/// The identifier of this boot of the machine. Bytes that the kernel took are still there while it is the same.
fn boot_id() -> String {
    kelson_platform::process::boot_id().unwrap_or_else(|| uuid::Uuid::new_v4().to_string())
}
