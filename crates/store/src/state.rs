//! The current state of all records and the recent changes, behind one short lock. Only the committer changes it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use tokio::sync::watch;

use crate::error::StoreError;
use crate::event::{Event, EventKind};
use crate::key::{RecordName, Resource};
use crate::limits::LOG_EVENTS_PER_RESOURCE_MAX;
use crate::log::Log;
use crate::lookup::FieldIndex;
use crate::record::Record;
use crate::scope::{ScopeLog, ScopeLogs};
use crate::table::Table;

/// The number of events dropped from the largest log before the largest log is determined again.
const TRIM_STEP: usize = 64;

/// One resource: its records, its recent events, and the channels that wake its watchers.
pub(crate) struct Slot {
    pub table: Table,
    pub log: Log,
    /// Wakes the watchers of the whole resource.
    pub changed: watch::Sender<()>,
    /// The events of the parts of the resource that are watched.
    pub scopes: ScopeLogs,
    /// The indexes that were used so far.
    pub indexes: Vec<FieldIndex>,
    /// The number of times that the records were replaced without events. Watchers that began before have to list again.
    pub restarts: u32,
    /// The number of times that records were changed without events.
    replacements: u32,
}

impl Slot {
    /// Wakes all watchers.
    pub fn announce_to_all(&self) {
        self.changed.send_replace(());
        self.scopes.announce();
    }

    /// Replaces all records without events.
    pub fn set_table(&mut self, table: Table) {
        self.table = table;
        self.indexes.clear();
        self.replacements += 1;
    }

    /// Adds a record without an event.
    pub fn add_silently(&mut self, record: Arc<Record>) {
        self.table.put(record);
        self.indexes.clear();
        self.replacements += 1;
    }

    /// A snapshot of the records from which an index can be made.
    pub fn snapshot(&self, revision: u64) -> Snapshot {
        Snapshot { table: self.table.clone(), revision, replacements: self.replacements }
    }

    /// Takes a record in, or removes it if the event is a deletion.
    fn apply(&mut self, event: &Event) {
        let key = event.record.key();
        let (old, new) = match event.kind {
            EventKind::Deleted => (self.table.remove(RecordName { namespace: &key.namespace, name: &key.name }), None),
            EventKind::Added | EventKind::Modified => (self.table.put(Arc::clone(&event.record)), Some(&event.record)),
        };
        for index in &mut self.indexes {
            index.change(old.as_ref(), new);
        }
    }

    /// Drops the oldest event.
    fn pop(&mut self) -> Option<Arc<Event>> {
        let event = self.log.pop()?;
        self.scopes.forget(&event);
        Some(event)
    }
}

/// The records of a resource at a revision.
pub(crate) struct Snapshot {
    pub table: Table,
    revision: u64,
    replacements: u32,
}

/// Hashes the address that identifies a resource. No client can choose these addresses, so the hash need not resist collision attacks.
#[derive(Default)]
struct PointerHasher(u64);

impl Hasher for PointerHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize(usize::from(*byte));
        }
    }
    fn write_usize(&mut self, n: usize) {
        /// An odd number without a pattern in its bits: 2^64 divided by the golden ratio.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0 ^ n as u64).wrapping_mul(SPREAD).rotate_left(32);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

/// The state that readers see: for each resource its table and log, and the revision of the last published change.
pub(crate) struct State {
    pub revision: u64,
    /// The floor of the logs of resources that have no slot yet.
    base_floor: u64,
    slots: HashMap<Resource, Slot, BuildHasherDefault<PointerHasher>>,
    log_bytes_max: usize,
    /// The shared storage has compacted the states before this revision, so they are not served even if the logs still have them.
    forgotten: u64,
}

impl State {
    pub fn new(revision: u64, base_floor: u64, log_bytes_max: usize) -> Self {
        Self { revision, base_floor, slots: HashMap::default(), log_bytes_max, forgotten: 0 }
    }

    pub fn get(&self, resource: Resource, place: RecordName<'_>) -> Option<&Arc<Record>> {
        self.slots.get(&resource)?.table.get(place)
    }

    pub fn slot(&self, resource: Resource) -> Option<&Slot> {
        self.slots.get(&resource)
    }

    pub fn slots(&self) -> impl Iterator<Item = (Resource, &Slot)> {
        self.slots.iter().map(|(resource, slot)| (*resource, slot))
    }

    /// The floor of the logs of resources that have no slot yet.
    pub fn base_floor(&self) -> u64 {
        self.base_floor
    }

    /// Lets watches start at these revisions, after which nothing has changed until now.
    pub fn resume_from(&mut self, base: u64, floors: &HashMap<Resource, u64>) {
        self.base_floor = base.min(self.revision);
        for (resource, floor) in floors {
            let floor = (*floor).min(self.revision);
            self.slot_mut(*resource).log = Log::starting_at(floor);
        }
    }

    /// A snapshot of every table, with the revision of all of them.
    pub fn tables(&self) -> (u64, Vec<(Resource, Table)>) {
        let mut tables: Vec<_> = self.slots().map(|(resource, slot)| (resource, slot.table.clone())).collect();
        tables.sort_unstable_by_key(|(resource, _)| *resource);
        (self.revision, tables)
    }

    pub fn slot_mut(&mut self, resource: Resource) -> &mut Slot {
        let floor = self.base_floor;
        match self.slots.entry(resource) {
            Entry::Occupied(slot) => slot.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(Slot {
                table: Table::default(),
                log: Log::starting_at(floor),
                changed: watch::Sender::new(()),
                scopes: ScopeLogs::default(),
                indexes: Vec::new(),
                restarts: 0,
                replacements: 0,
            }),
        }
    }

    /// Sets the floor of a resource's log. Called only while the store is loading.
    pub fn raise_floor(&mut self, resource: Resource, floor: u64) {
        let slot = self.slot_mut(resource);
        if slot.log.floor() < floor {
            slot.log = Log::starting_at(floor);
        }
    }

    /// Ends all watches of a resource whose records were replaced without events: their watchers have to list again.
    pub fn restart(&mut self, resource: Resource) {
        let slot = self.slot_mut(resource);
        slot.restarts += 1;
        slot.announce_to_all();
    }

    /// Returns the number of times that the records of a resource were replaced without events.
    pub fn restarts(&self, resource: Resource) -> u32 {
        self.slots.get(&resource).map_or(0, |slot| slot.restarts)
    }

    /// The lowest revision from which a resource can be watched.
    pub fn floor(&self, resource: Resource) -> u64 {
        self.slots.get(&resource).map_or(self.base_floor, |slot| slot.log.floor())
    }

    /// Makes one event visible. Events must come in the order of their revisions. The logs of scopes whose watchers have to be woken
    /// are added to `concerned`.
    pub fn apply(&mut self, event: Arc<Event>, concerned: &mut Vec<Arc<ScopeLog>>) {
        self.revision = event.revision;
        let slot = self.slot_mut(event.record.key().resource);
        slot.apply(&event);
        slot.scopes.push(&event, concerned);
        slot.log.push(event);
    }

    /// Adds an index that was made of a snapshot, and brings it up to date. Does nothing if the resource has the index, or if changes
    /// since then are not in the log any more.
    pub fn add_index(&mut self, resource: Resource, mut index: FieldIndex, of: &Snapshot) {
        let Some(slot) = self.slots.get_mut(&resource) else { return };
        let is_there = slot.indexes.iter().any(|there| there.field() == index.field());
        if is_there || slot.replacements != of.replacements || slot.log.floor() > of.revision {
            return;
        }
        for event in slot.log.after(of.revision) {
            match event.kind {
                EventKind::Deleted => index.change(Some(event.previous.as_ref().unwrap_or(&event.record)), None),
                EventKind::Added | EventKind::Modified => index.change(event.previous.as_ref(), Some(&event.record)),
            }
        }
        slot.indexes.push(index);
    }

    /// Raises the revision to `revision`, up to which there were no changes except those applied.
    pub fn advance(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
    }

    /// Stops serving states from before a revision. Watches can still start as far back as the logs reach.
    pub fn forget_before(&mut self, revision: u64) {
        self.forgotten = self.forgotten.max(revision);
    }

    /// Replaces all records by others at a revision before which nothing is known. Watchers have to list again.
    pub fn replace(&mut self, revision: u64, mut tables: HashMap<Resource, Table>) {
        self.advance(revision);
        self.base_floor = self.revision;
        for (resource, slot) in &mut self.slots {
            slot.set_table(tables.remove(resource).unwrap_or_default());
            slot.log = Log::starting_at(self.revision);
            slot.scopes.restart_at(self.revision);
        }
        for (resource, table) in tables {
            self.slot_mut(resource).set_table(table);
        }
    }

    /// Shortens the logs to their bounds. The largest log is shortened first, so that many changes of one resource cost only that
    /// resource's history. Returns the dropped events, so that the caller frees them outside the lock.
    pub fn trim(&mut self, touched: &[Resource], aged_before_s: Option<u64>) -> Vec<Arc<Event>> {
        let mut dropped = Vec::new();
        for resource in touched {
            if let Some(slot) = self.slots.get_mut(resource) {
                while slot.log.len() > LOG_EVENTS_PER_RESOURCE_MAX {
                    dropped.extend(slot.pop());
                }
            }
        }
        if let Some(before_s) = aged_before_s {
            for slot in self.slots.values_mut() {
                while slot.log.oldest().is_some_and(|event| event.at_s < before_s) {
                    dropped.extend(slot.pop());
                }
                slot.scopes.sweep();
            }
        }
        let mut total: usize = self.slots.values().map(|slot| slot.log.cost()).sum();
        while total > self.log_bytes_max {
            let Some(largest) = self.slots.values_mut().max_by_key(|slot| slot.log.cost()) else { break };
            for _ in 0..TRIM_STEP {
                let before = largest.log.cost();
                let Some(event) = largest.pop() else { break };
                total -= before - largest.log.cost();
                dropped.push(event);
                if total <= self.log_bytes_max {
                    break;
                }
            }
        }
        dropped
    }

    /// Returns a snapshot of a resource's current table, and the events to undo in it to get its state at `revision`.
    pub fn rollback(&self, resource: Resource, revision: u64) -> Result<(Table, Vec<Arc<Event>>), StoreError> {
        if revision > self.revision {
            return Err(StoreError::FutureRevision { requested: revision, current: self.revision });
        }
        let floor = self.floor(resource).max(self.forgotten);
        if revision < floor {
            return Err(StoreError::Compacted { requested: revision, oldest: floor });
        }
        let Some(slot) = self.slots.get(&resource) else { return Ok((Table::default(), Vec::new())) };
        Ok((slot.table.clone(), slot.log.after(revision).rev().cloned().collect()))
    }
}

/// Undoes events in a table. The events must be in order from the newest to the oldest.
pub(crate) fn take_back(table: &mut Table, events: &[Arc<Event>]) {
    for event in events {
        match &event.previous {
            Some(previous) => drop(table.put(Arc::clone(previous))),
            None => {
                let key = event.record.key();
                table.remove(RecordName { namespace: &key.namespace, name: &key.name });
            }
        }
    }
}

/// A consistent view of a range of one resource's records at one revision. It holds a snapshot and no lock: writes
/// continue, and the records in the view stay in memory until it is dropped.
#[derive(Clone)]
pub struct ListView {
    table: Table,
    start: usize,
    len: usize,
    remaining: usize,
    revision: u64,
}

impl ListView {
    pub(crate) fn new(
        table: Table,
        revision: u64,
        namespace: Option<&str>,
        start_after: Option<(&str, &str)>,
        limit: Option<usize>,
    ) -> Self {
        let range = table.range(namespace, start_after.map(|(namespace, name)| RecordName { namespace, name }));
        let len = limit.map_or(range.len(), |limit| limit.min(range.len()));
        Self { table, start: range.start, len, remaining: range.len() - len, revision }
    }

    /// The revision of the view: the `resourceVersion` of the list, from which a watch continues it.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The number of records in the view.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the view is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of records that the limit cut off after the view.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.remaining
    }

    /// The records in storage order, which is by "namespace/name".
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.table.iter_from(self.start).take(self.len)
    }

    /// The records of the view from index `skip` on, for streams that resume. The skipped records cost nothing.
    pub fn iter_from(&self, skip: usize) -> impl Iterator<Item = &Arc<Record>> {
        self.table.iter_from(self.start + skip.min(self.len)).take(self.len.saturating_sub(skip))
    }

    /// The part of the view that has the record with this name, which is found without a look at the others.
    #[must_use]
    pub fn named(&self, namespace: &str, name: &str) -> Self {
        let (start, found) = self.table.find(RecordName { namespace, name });
        let len = usize::from(found && (self.start..self.start + self.len).contains(&start));
        Self { table: self.table.clone(), start, len, remaining: 0, revision: self.revision }
    }

    /// Returns the records as a vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<Arc<Record>> {
        self.iter().cloned().collect()
    }
}
