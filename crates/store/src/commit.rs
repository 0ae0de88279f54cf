//! The committer checks preconditions in order, assigns revisions, appends each batch with one sync, then publishes it and answers the
//! writers. A store has one committer, and nothing else changes its state.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kelson_meta::Interner;

use crate::at_rest::{SealError, Writer};
use crate::change::{Change, ops};
use crate::engine::format::{self, Mark};
use crate::engine::{Engine, EngineError, Op};
use crate::error::StoreError;
use crate::event::EventKind;
use crate::key::{Key, RecordName};
use crate::limits::{MAINTAIN_DELAY_S, MAINTAIN_STEP_MS, RELAXED_SYNC_DELAY_S, REVISIONS_RESERVED, ROOM_LOOK_EVERY_S};
use crate::meta::{Labels, RecordMeta};
use crate::publish::{Publisher, Visible};
use crate::queue::{Pending, Reply, WakeReason};
use crate::record::Record;
use crate::room::{BatchRoom, Room};
use crate::shared::Shared;
use crate::write::{Action, Committed, Durability, Write};

/// Changes that were given to the engine, and the engine's result.
type Handed = (Vec<Change>, Result<(), Arc<EngineError>>);

pub(crate) struct Committer {
    engine: Box<dyn Engine>,
    room: Room,
    /// The failed sync, if there was one. Nothing is written after it.
    halted: Option<Arc<EngineError>>,
    shared: Arc<Shared>,
    /// The last revision that was assigned, including those of failed batches.
    revision: u64,
    /// The last revision that relaxed writes may use.
    reserved: u64,
    /// The time since which appended bytes wait for a sync.
    unsynced_since: Option<Instant>,
    publisher: Publisher,
    /// When to do housekeeping next; deletions schedule it.
    maintain_at: Option<Instant>,
    /// Whether unencrypted data was rewritten encrypted, so that the old bytes must be erased.
    erases: bool,
    /// Marks that a full disk did not take when the store was opened. They are written with the next batch.
    marks: Vec<Op>,
    /// The disk-full error while the store accepts only deletions, which use the space reserved for them.
    full: Option<Arc<EngineError>>,
    looked_at: Option<Instant>,
    failing: bool,
    labels: Interner<[u8]>,
    namespaces: Interner<str>,
}

impl Committer {
    /// Creates the committer. `marks` could not be written when the store was opened.
    pub fn new(engine: Box<dyn Engine>, shared: Arc<Shared>, reserved: u64, room: Room, marks: Vec<Op>) -> Self {
        let revision = shared.state.read().revision;
        Self {
            engine,
            room,
            halted: None,
            publisher: Publisher::new(Arc::clone(&shared)),
            shared,
            revision,
            reserved,
            unsynced_since: None,
            maintain_at: None,
            erases: false,
            full: None,
            looked_at: None,
            failing: !marks.is_empty(),
            marks,
            labels: Interner::default(),
            namespaces: Interner::default(),
        }
    }

    /// Runs the committer's thread: commits batches until the queue is closed and empty.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            let sync_at = self.unsynced_since.map(|since| since + Duration::from_secs(RELAXED_SYNC_DELAY_S));
            if sync_at.is_some_and(|at| at <= Instant::now()) {
                self.sync();
                continue;
            }
            match shared.queue.take(sync_at.into_iter().chain(self.maintain_at).min()) {
                WakeReason::Batch(batch) => self.commit(batch),
                WakeReason::Deadline => self.maintain(),
                WakeReason::Closed => break,
            }
        }
        self.finish();
    }

    /// The data that the committer shares with the readers.
    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Commits all writes of a batch whose preconditions hold, with one append.
    pub fn commit(&mut self, batch: Vec<Pending>) {
        self.shared.health.begun();
        match self.halted.clone() {
            Some(error) => {
                batch.into_iter().for_each(|p| answer(p.reply, Err(StoreError::Engine(Arc::clone(&error)))));
            }
            None => self.commit_checked(batch),
        }
        self.shared.health.answered();
    }

    fn commit_checked(&mut self, batch: Vec<Pending>) {
        let first_revision = self.revision + 1;
        let synced = batch.iter().any(|pending| pending.write.durability == Durability::Synced);
        self.look_for_room();
        let (changes, refused) = self.check(batch);
        if changes.is_empty() {
            return;
        }
        let (mut changes, mut stored) = self.store(changes, synced);
        if let Err(error) = &stored
            && error.is_full_disk()
            && changes.iter().any(Change::makes_room)
            && self.engine.make_room()
        {
            self.full = Some(Arc::clone(error));
            (changes, stored) = self.store_deletions(changes, &Arc::clone(error), synced);
        }
        match stored {
            Ok(()) => {
                self.publish(changes);
                refused.into_iter().for_each(|(reply, why)| answer(reply, Err(why)));
            }
            Err(error) => {
                self.failed(&error, first_revision, changes.len());
                let replies = changes.into_iter().map(|change| change.reply);
                for reply in replies.chain(refused.into_iter().map(|(reply, _)| reply)) {
                    answer(reply, Err(StoreError::Engine(Arc::clone(&error))));
                }
            }
        }
    }

    /// Gives the changes that free space to the engine again, after the disk was full. The other changes are rejected.
    fn store_deletions(&mut self, changes: Vec<Change>, full: &Arc<EngineError>, synced: bool) -> Handed {
        tracing::error!(error = %full, "the disk is full; released the reserved space and accepting only deletions");
        self.shared.health.disk(Some(format!("accepting only deletions: {full}")));
        let mut deletions = Vec::with_capacity(changes.len());
        for mut change in changes {
            match change.makes_room().then(|| self.op(change.kind, &change.record)) {
                None => answer(change.reply, Err(StoreError::Engine(Arc::clone(full)))),
                Some(Err(why)) => answer(change.reply, Err(StoreError::Sealed(why))),
                Some(Ok((op, writer))) => {
                    (change.op, change.writer) = (op, writer);
                    deletions.push(change);
                }
            }
        }
        self.store(deletions, synced)
    }

    /// Checks from time to time whether a full disk has free space again.
    fn look_for_room(&mut self) {
        let now = Instant::now();
        if self.full.is_none() || self.looked_at.is_some_and(|at| now < at + Duration::from_secs(ROOM_LOOK_EVERY_S)) {
            return;
        }
        self.looked_at = Some(now);
        if self.engine.keep_room() {
            (self.full, self.failing) = (None, false);
            self.shared.health.disk(None);
            tracing::info!("the disk has free space again; accepting all writes");
        }
    }

    /// Gives changes to the engine.
    fn store(&mut self, mut changes: Vec<Change>, synced: bool) -> Handed {
        let mut ops = ops(&mut changes);
        // A relaxed write may use only a revision that a synced write has reserved. Synced writes reserve ahead.
        let wanted = self.revision + if synced { REVISIONS_RESERVED / 2 } else { 0 };
        let reserve = (wanted > self.reserved).then_some(self.revision + REVISIONS_RESERVED);
        ops.extend(reserve.map(|revision| Mark::Reserved(revision).op()));
        ops.extend(self.marks.iter().cloned());
        let sync = synced || reserve.is_some() || !self.marks.is_empty();
        if let Err(error) = self.engine.append(&ops, sync) {
            return (changes, Err(Arc::new(error)));
        }
        self.marks.clear();
        self.recovered();
        let bytes = changes.iter().map(|change| change.record.len()).sum();
        self.shared.counters.appended(changes.len(), bytes, sync);
        if sync {
            self.unsynced_since = None;
            self.reserved = reserve.unwrap_or(self.reserved);
        } else {
            self.unsynced_since.get_or_insert_with(Instant::now);
        }
        let writers = &self.shared.writers;
        let erases = changes.iter().any(|change| {
            change.writer != Writer::CLEAR && change.previous.as_ref().is_some_and(|before| writers.is_clear(before))
        });
        self.erases |= erases;
        if erases || changes.iter().any(|change| change.kind == EventKind::Deleted) {
            let delay_s = if self.full.is_some() { ROOM_LOOK_EVERY_S } else { MAINTAIN_DELAY_S };
            self.maintain_at.get_or_insert_with(|| Instant::now() + Duration::from_secs(delay_s));
        }
        (changes, Ok(()))
    }

    /// Checks the writes in order against the state and against the earlier changes of the batch, and answers those that the state
    /// rejects. Writes that conflict with a change of the same batch are returned instead: the record in their error is not stored yet
    /// and not visible to readers, and it may never be.
    fn check(&mut self, batch: Vec<Pending>) -> (Vec<Change>, Vec<(Reply, StoreError)>) {
        let mut refused = Vec::new();
        let mut changes: Vec<Change> = Vec::with_capacity(batch.len());
        let mut changed: HashMap<Key, Option<Arc<Record>>> = HashMap::new();
        let alone = batch.len() == 1;
        let mut room = BatchRoom::default();
        for Pending { write, reply, .. } in batch {
            // Looked at before the state: what is not locked any more is in the state.
            if let Some(reason) = self.shared.locked.reason(write.key.resource) {
                answer(reply, Err(StoreError::Sealed(reason)));
                continue;
            }
            let before = changed.get(&write.key);
            let unseen = before.is_some();
            let current = match before {
                Some(record) => record.clone(),
                None => {
                    let place = RecordName { namespace: &write.key.namespace, name: &write.key.name };
                    self.shared.state.read().get(write.key.resource, place).cloned()
                }
            };
            if let Err(error) = write.allowed(current.as_ref()) {
                match unseen {
                    true => refused.push((reply, error)),
                    false => answer(reply, Err(error)),
                }
                continue;
            }
            if let (Some(full), Action::Put { meta, .. }) = (&self.full, &write.action)
                && !meta.deleting
            {
                answer(reply, Err(StoreError::Engine(Arc::clone(full))));
                continue;
            }
            let held = current.as_ref().map_or(0, |record| record.cost());
            if let Action::Put { body, .. } = &write.action
                && current.as_ref().is_none_or(|record| body.len() > record.len())
                && let Err(full) = self.room.check(&room, &write.key.namespace, body.len(), held)
            {
                answer(reply, Err(full));
                continue;
            }
            self.revision += 1;
            let (kind, record) = self.record(write, current.as_ref());
            let (op, writer) = match self.op(kind, &record) {
                Ok(op) => op,
                Err(error) => {
                    self.revision -= 1;
                    answer(reply, Err(StoreError::Sealed(error)));
                    continue;
                }
            };
            let stays = if kind == EventKind::Deleted { 0 } else { record.cost() };
            room.accept(&record.key().namespace, stays, held);
            if !alone {
                let left = (kind != EventKind::Deleted).then(|| Arc::clone(&record));
                changed.insert(record.key().clone(), left);
            }
            changes.push(Change { kind, record, previous: current, builds_on_batch: unseen, op, writer, reply });
        }
        (changes, refused)
    }

    /// Builds the record that an allowed write creates at the committer's current revision.
    fn record(&mut self, write: Write, current: Option<&Arc<Record>>) -> (EventKind, Arc<Record>) {
        let revision = self.revision;
        let (kind, (bytes, at), meta) = match (write.action, current) {
            (Action::Put { body, meta }, current) => {
                let kind = if current.is_some() { EventKind::Modified } else { EventKind::Added };
                (kind, body.splice(revision), self.intern(meta))
            }
            (Action::Delete { body: Some(body) }, current) => {
                let meta = current.map(|record| record.meta().clone()).unwrap_or_default();
                (EventKind::Deleted, body.splice(revision), meta)
            }
            (Action::Delete { body: None }, current) => {
                let meta = current.map(|record| record.meta().clone()).unwrap_or_default();
                let spliced = current.map(|record| record.splice(revision)).unwrap_or_default();
                (EventKind::Deleted, spliced, meta)
            }
        };
        let key = match current {
            Some(current) => current.key().clone(),
            None => Key { namespace: self.namespaces.share(write.key.namespace), ..write.key },
        };
        let created = current.map_or(revision, |record| record.create_revision());
        let record = Arc::new(Record::new(key, bytes, at, revision, created, meta));
        record.set_mark(write.mark);
        self.shared.recent.keep(&record);
        (kind, record)
    }

    fn intern(&mut self, meta: RecordMeta) -> RecordMeta {
        let labels = if meta.labels.is_empty() { meta.labels } else { Labels(self.labels.share(meta.labels.0)) };
        RecordMeta { labels, ..meta }
    }

    /// Builds the engine's operation for a change, encrypted if the resource is configured so.
    fn op(&self, kind: EventKind, record: &Record) -> Result<(Op, Writer), SealError> {
        match kind {
            EventKind::Deleted => Ok((format::delete(record), Writer::CLEAR)),
            EventKind::Added | EventKind::Modified => format::put(record, self.shared.writers.at_rest()),
        }
    }

    /// Makes a stored batch visible, then answers its writers.
    fn publish(&mut self, changes: Vec<Change>) {
        let mut replies = Vec::with_capacity(changes.len());
        let mut visible = Vec::with_capacity(changes.len());
        for Change { kind, record, previous, writer, reply, .. } in changes {
            let answer =
                Committed { revision: record.revision(), record: Arc::clone(&record), previous: previous.clone() };
            replies.push((reply, answer));
            let stays = if kind == EventKind::Deleted { 0 } else { record.cost() };
            self.room.change(&record.key().namespace, stays, previous.as_ref().map_or(0, |p| p.cost()));
            visible.push(Visible { kind, record, previous, writer });
        }
        self.publisher.publish(visible, None);
        for (reply, committed) in replies {
            answer(reply, Ok(committed));
        }
    }

    /// Syncs the relaxed writes. After a failure nothing is written any more: see [`EngineError::Sync`].
    fn sync(&mut self) {
        match self.engine.sync() {
            Ok(()) => {
                self.recovered();
                self.shared.counters.synced();
                self.unsynced_since = None;
            }
            Err(error) => {
                self.unsynced_since = None;
                self.halt(Arc::new(error));
            }
        }
    }

    /// Does one step of housekeeping if it is due, and schedules the next step if there is more to do.
    fn maintain(&mut self) {
        let now = Instant::now();
        if self.halted.is_some() || self.maintain_at.is_none_or(|at| at > now) {
            return;
        }
        if std::mem::take(&mut self.erases)
            && let Err(error) = self.engine.erase()
        {
            tracing::warn!(%error, "erasing unencrypted data failed; retrying at the next start");
        }
        self.maintain_at = match self.engine.maintain() {
            Ok(true) => Some(now + Duration::from_millis(MAINTAIN_STEP_MS)),
            Ok(false) => None,
            Err(error) => {
                tracing::warn!(%error, "maintenance of the store failed");
                None
            }
        };
    }

    /// Marks the store as cleanly closed, so that the next start can trust all revisions.
    pub fn finish(&mut self) {
        if self.halted.is_some() {
            tracing::error!("not closing the store after its failed sync; the next start recovers it");
            return;
        }
        let marks = [Mark::Reserved(self.revision).op(), Mark::Running(String::new()).op()];
        if let Err(error) = self.engine.append(&marks, true) {
            tracing::error!(%error, "closing the store failed; acknowledged writes are not lost");
        }
    }

    fn failed(&mut self, error: &Arc<EngineError>, first_revision: u64, writes: usize) {
        if !self.failing {
            tracing::error!(%error, first_revision, writes, "storing writes failed; rejected them");
        }
        self.failing = true;
        self.shared.health.disk(Some(error.to_string()));
        if matches!(**error, EngineError::Sync { .. }) {
            self.halt(Arc::clone(error));
        }
    }

    /// Stops all writing until the process is restarted. After a failed sync the kernel may report success for the next one although it
    /// has dropped the bytes, so a retry would turn a reported loss into a silent one.
    fn halt(&mut self, error: Arc<EngineError>) {
        tracing::error!(%error, "a sync failed; rejecting writes until a restart");
        self.shared.health.halted(&format!("a sync failed; restart to accept writes again: {error}"));
        self.halted = Some(error);
    }

    fn recovered(&mut self) {
        if self.full.is_some() {
            return;
        }
        if self.failing {
            tracing::info!("the store accepts writes again");
            self.shared.health.disk(None);
        }
        self.failing = false;
    }
}

/// Answers a writer. The writer may be gone; the write happened nevertheless.
fn answer(reply: Reply, result: Result<Committed, StoreError>) {
    drop(reply.send(result));
}
