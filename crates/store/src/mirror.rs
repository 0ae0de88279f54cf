//! A mirror: a store whose records are kept elsewhere, in shared storage. The mirror has them in the order and with the revisions of
//! that storage, and writes go there. Readers and watchers see no difference. The code that connects the storage feeds changes into
//! [`Mirror`] and performs the writes as a [`Remote`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kelson_meta::Interner;
use parking_lot::{Mutex, RwLock};

use crate::at_rest::{SealError, Writer, Writers};
use crate::body::Body;
use crate::error::StoreError;
use crate::event::EventKind;
use crate::expiry::Expiry;
use crate::health::HealthBoard;
use crate::key::{Key, RecordName, Resource};
use crate::locked::LockedResources;
use crate::meta::{Labels, RecordMeta};
use crate::open::StoreOptions;
use crate::publish::{Publisher, Visible};
use crate::queue::Queue;
use crate::recent::RecentRecords;
use crate::record::Record;
use crate::remote::Remote;
use crate::samples::Samples;
use crate::shared::Shared;
use crate::state::State;
use crate::stats::Counters;
use crate::store::{Commits, Store};
use crate::table::Table;
use crate::waiting::RevisionWaiters;
use crate::write::{Committed, Write};

/// One change that happened in the shared storage.
#[derive(Debug)]
pub struct MirrorChange {
    /// The key of the record.
    pub key: Key,
    /// The revision of the change.
    pub revision: u64,
    /// The revision at which the record was created.
    pub create_revision: u64,
    /// The stored value, or `None` for a deletion.
    pub value: Option<MirrorValue>,
}

/// A value in the shared storage.
#[derive(Debug)]
pub struct MirrorValue {
    /// The object's JSON.
    pub body: Body,
    /// The values beside it.
    pub meta: RecordMeta,
    /// The writer of the value, as [`crate::AtRest`] identifies it.
    pub writer: Writer,
}

/// The side of a mirror that receives changes. The connection to the shared storage holds it and keeps the mirror up to date.
pub struct Mirror {
    shared: Arc<Shared>,
    feed: Mutex<Feed>,
}

struct Feed {
    publisher: Publisher,
    labels: Interner<[u8]>,
    namespaces: Interner<str>,
}

impl Feed {
    fn record(&mut self, key: Key, revision: u64, create_revision: u64, value: MirrorValue) -> (Arc<Record>, Writer) {
        let MirrorValue { body, meta, writer } = value;
        let (bytes, at) = body.splice(revision);
        let key = Key { namespace: self.namespaces.share(key.namespace), ..key };
        let labels = if meta.labels.is_empty() { meta.labels } else { Labels(self.labels.share(meta.labels.0)) };
        let meta = RecordMeta { labels, ..meta };
        (Arc::new(Record::new(key, bytes, at, revision, create_revision, meta)), writer)
    }
}

impl Mirror {
    /// Makes an empty mirror of the storage called `identity`. The options' limits for stored bytes do not apply.
    #[must_use]
    pub fn new(options: StoreOptions, identity: String) -> Self {
        let shared = Arc::new(Shared {
            state: RwLock::new(State::new(0, 0, options.log_bytes_max)),
            queue: Queue::default(),
            frames: Arc::default(),
            waiters: RevisionWaiters::default(),
            recent: RecentRecords::default(),
            samples: Samples::default(),
            expiry: Expiry::default(),
            writers: Writers::new(options.at_rest),
            locked: LockedResources::default(),
            counters: Counters::default(),
            health: HealthBoard::default(),
            clock: options.clock,
            identity,
            closed: AtomicBool::new(false),
        });
        let publisher = Publisher::new(Arc::clone(&shared));
        let feed = Mutex::new(Feed { publisher, labels: Interner::default(), namespaces: Interner::default() });
        Self { shared, feed }
    }

    /// The store that reads the mirror and writes through `remote`.
    #[must_use]
    pub fn store(&self, remote: Arc<dyn Remote>) -> Store {
        Store::over(Arc::clone(&self.shared), Commits::Elsewhere(remote))
    }

    /// Replaces all records by those at a revision. Existing watchers must list again. Resources in `locked` cannot be
    /// decrypted now: their records are not shown, and they cannot be written.
    pub fn replace(&self, revision: u64, records: Vec<MirrorChange>, locked: HashMap<Resource, SealError>) {
        let mut feed = self.feed.lock();
        let mut tables: HashMap<Resource, Table> = HashMap::new();
        self.shared.writers.forget();
        for MirrorChange { key, revision, create_revision, value } in records {
            let Some(value) = value.filter(|_| !locked.contains_key(&key.resource)) else { continue };
            let (record, writer) = feed.record(key, revision, create_revision, value);
            self.shared.writers.note(EventKind::Added, &record, writer);
            self.shared.samples.pack(&record);
            tables.entry(record.key().resource).or_default().put(record);
        }
        let mut state = self.shared.state.write();
        state.replace(revision, tables);
        for (resource, _) in self.shared.locked.all() {
            state.restart(resource);
        }
        self.shared.locked.set(locked);
        for (_, slot) in state.slots() {
            slot.announce_to_all();
        }
        self.shared.waiters.reached(state.revision);
    }

    /// Locks a resource, a record of which cannot be decrypted now: nothing of it is shown, its watchers have to list again, and it is
    /// not written until [`Mirror::replace`] says otherwise.
    pub fn lock(&self, resource: Resource, reason: SealError) {
        let _feed = self.feed.lock();
        let mut state = self.shared.state.write();
        state.slot_mut(resource).set_table(Table::default());
        state.restart(resource);
        let mut locked: HashMap<Resource, SealError> = self.shared.locked.all().into_iter().collect();
        locked.insert(resource, reason);
        self.shared.locked.set(locked);
    }

    /// Why a resource is locked; `None` when it is not.
    #[must_use]
    pub fn locked(&self, resource: Resource) -> Option<SealError> {
        self.shared.locked.reason(resource)
    }

    /// Whether any resource is locked.
    #[must_use]
    pub fn has_locked(&self) -> bool {
        !self.shared.locked.all().is_empty()
    }

    /// Drops the history before a revision, as the shared storage did, so that all servers answer a continued list
    /// alike.
    pub fn forget_before(&self, revision: u64) {
        self.shared.state.write().forget_before(revision);
    }

    pub(crate) fn with_state(&self, change: impl FnOnce(&mut State)) {
        let _feed = self.feed.lock();
        change(&mut self.shared.state.write());
    }

    /// Makes changes visible, in the order of their revisions, up to `revision`.
    pub fn apply(&self, changes: Vec<MirrorChange>, revision: u64) {
        let mut feed = self.feed.lock();
        let mut visible = Vec::with_capacity(changes.len());
        let mut changed: HashMap<Key, Option<Arc<Record>>> = HashMap::new();
        for MirrorChange { key, revision, create_revision, value } in changes {
            if self.shared.locked.reason(key.resource).is_some() {
                continue;
            }
            let previous = match changed.get(&key) {
                Some(record) => record.clone(),
                None => self.get(&key),
            };
            let Some(value) = value else {
                let Some(last) = previous else { continue };
                changed.insert(key, None);
                let record = gone(&last, None, revision);
                let writer = Writer::CLEAR;
                visible.push(Visible { kind: EventKind::Deleted, record, previous: Some(last), writer });
                continue;
            };
            let (record, writer) = feed.record(key, revision, create_revision, value);
            self.shared.recent.keep(&record);
            self.shared.counters.appended(1, record.len(), false);
            changed.insert(record.key().clone(), Some(Arc::clone(&record)));
            let kind = if previous.is_some() { EventKind::Modified } else { EventKind::Added };
            visible.push(Visible { kind, record, previous, writer });
        }
        feed.publisher.publish(visible, Some(revision));
        drop(feed);
        for record in self.shared.recent.take_gone() {
            self.shared.samples.pack(&record);
        }
    }

    /// The record with this key in the mirror.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<Record>> {
        let place = RecordName { namespace: &key.namespace, name: &key.name };
        self.shared.state.read().get(key.resource, place).cloned()
    }

    /// Checks a write's precondition against what the mirror knows.
    ///
    /// # Errors
    /// Returns the precondition that does not hold.
    pub fn check(&self, write: &Write, current: Option<&Arc<Record>>) -> Result<(), StoreError> {
        self.shared.locked.reason(write.key.resource).map_or(Ok(()), |reason| Err(StoreError::Sealed(reason)))?;
        write.allowed(current)
    }

    /// The result of a write that got a revision: the record that it made from `before`.
    #[must_use]
    pub fn committed(
        &self,
        key: &Key,
        revision: u64,
        put: Option<(&Body, RecordMeta)>,
        last: Option<&Body>,
        before: Option<Arc<Record>>,
    ) -> Committed {
        let made = || {
            let Some((body, meta)) = put else {
                return before.as_ref().map(|before| gone(before, last, revision));
            };
            let (bytes, at) = body.splice(revision);
            let created = before.as_ref().map_or(revision, |before| before.create_revision());
            Some(Arc::new(Record::new(key.clone(), bytes, at, revision, created, meta)))
        };
        let shown = self.get(key).filter(|record| record.revision() == revision);
        let record = shown.or_else(made).unwrap_or_else(|| {
            // The deletion of a missing record is rejected before it gets a revision.
            Arc::new(Record::new(key.clone(), bytes::Bytes::new(), 0, revision, revision, RecordMeta::default()))
        });
        Committed { revision, record, previous: before }
    }

    /// The revision up to which all changes are visible.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.shared.state.read().revision
    }

    /// Waits until all changes up to `revision` are visible. The caller bounds the wait.
    ///
    /// # Errors
    /// Returns [`StoreError::Closed`] if the store closes first.
    pub async fn wait_for(&self, revision: u64) -> Result<(), StoreError> {
        self.shared.wait_for_revision(revision).await.map(drop)
    }

    /// The encryption of records in the shared storage, if there is any.
    #[must_use]
    pub fn at_rest(&self) -> Option<&dyn crate::at_rest::AtRest> {
        self.shared.writers.at_rest()
    }

    /// The current time in seconds since the Unix epoch.
    #[must_use]
    pub fn now_s(&self) -> u64 {
        self.shared.now_s()
    }

    /// Reports to readiness why the storage cannot be written or read, or with `None` that it can again.
    pub fn fault(&self, why: Option<String>) {
        self.shared.health.disk(why);
    }

    /// Reports that only a restart of the process can help. The store's owner learns of it through [`Store::failed`].
    pub fn ended(&self, why: &str) {
        // The store is closed before its owner learns of the failure.
        self.shared.close();
        self.shared.health.ended(why);
    }

    /// Whether the store was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }
}

/// The last state of a deleted record, at the deletion's revision: `last` if it is given, or else the record before.
fn gone(before: &Arc<Record>, last: Option<&Body>, revision: u64) -> Arc<Record> {
    let (bytes, at) = last.map_or_else(|| before.splice(revision), |body| body.splice(revision));
    let (key, meta) = (before.key().clone(), before.meta().clone());
    Arc::new(Record::new(key, bytes, at, revision, before.create_revision(), meta))
}
