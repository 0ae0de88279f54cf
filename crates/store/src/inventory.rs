//! Everything that a store has at one revision, so that it can be moved to another storage with its revisions.
#![allow(clippy::disallowed_methods, reason = "blocking: the callers use a lane for files")]

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::at_rest::AtRest;
use crate::engine::format::{self, FORMAT, Mark, damaged};
use crate::engine::{Engine, EngineError, Op, SqliteEngine};
use crate::error::StoreError;
use crate::key::Resource;
use crate::meta::RecordMeta;
use crate::mirror::Mirror;
use crate::record::Record;
use crate::store::Store;
use crate::table::Table;

/// The boot identifier in a store that was moved. It matches no boot, so that watchers from before the revision list again.
const NOWHERE: &str = "moved";
/// The number of records that are written at once.
const ROWS_AT_ONCE: usize = 1000;

/// The revisions from which watches can start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Floors {
    /// The floor of all resources without an entry in `resources`.
    pub base: u64,
    /// The revision of the last change of a resource, by `GROUP/PLURAL`.
    pub resources: BTreeMap<String, u64>,
}

/// Everything that a store has at one revision. It is a snapshot: later writes do not change it.
pub struct Inventory {
    revision: u64,
    floors: Floors,
    tables: Vec<(Resource, Table)>,
}

impl Store {
    /// Returns everything that the store has now.
    ///
    /// # Errors
    /// Returns [`StoreError::Sealed`] if records of a resource cannot be decrypted now.
    pub fn inventory(&self) -> Result<Inventory, StoreError> {
        if let Some((_, reason)) = self.all_locked().into_iter().next() {
            return Err(StoreError::Sealed(reason));
        }
        let state = self.shared().state.read();
        let (revision, tables) = state.tables();
        let newest = |(resource, slot): (Resource, &crate::state::Slot)| {
            let last = slot.log.after(0).next_back().map_or(0, |event| event.revision);
            (resource.as_str().to_owned(), slot.log.floor().max(last))
        };
        let floors = Floors { base: state.base_floor(), resources: state.slots().map(newest).collect() };
        Ok(Inventory { revision, floors, tables })
    }
}

impl Mirror {
    /// Lets watches start at these revisions instead of the current one. To be called after the first
    /// [`Mirror::replace`], when it is known that the storage has not changed since.
    pub fn resume_from(&self, floors: &Floors) {
        let resources: HashMap<Resource, u64> =
            floors.resources.iter().map(|(name, floor)| (Resource::parse(name), *floor)).collect();
        self.with_state(|state| state.resume_from(floors.base, &resources));
    }
}

impl Inventory {
    /// The revision of the store.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The revisions from which watches can start without the events in memory.
    #[must_use]
    pub fn floors(&self) -> &Floors {
        &self.floors
    }

    /// The number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tables.iter().map(|(_, table)| table.len()).sum()
    }

    /// Whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All records, by resource and key.
    pub fn records(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.tables.iter().flat_map(|(_, table)| table.iter_from(0))
    }

    /// Writes a new embedded store into the directory `to`, which must be empty or missing, with the same revisions and the
    /// current encryption. `expires_at_s` gives the time at which the store deletes a record, in seconds since the Unix
    /// epoch; 0 for never. Blocks on the disk; when it returns, the disk has everything.
    ///
    /// # Errors
    /// Returns [`StoreError::Engine`] or [`StoreError::Sealed`]; then the directory is not a store.
    pub fn write(
        &self,
        to: &Path,
        at_rest: Option<&dyn AtRest>,
        expires_at_s: impl Fn(&Record) -> u64,
    ) -> Result<(), StoreError> {
        let fault = |error| StoreError::Engine(Arc::new(error));
        if std::fs::read_dir(to).is_ok_and(|mut files| files.next().is_some()) {
            let source = std::io::ErrorKind::AlreadyExists.into();
            return Err(fault(EngineError::Io { context: "write the store", source }));
        }
        let mut engine = SqliteEngine::open(to).map_err(fault)?;
        let mut rows = std::collections::HashSet::new();
        let mut ops: Vec<Op> = Vec::with_capacity(ROWS_AT_ONCE);
        for record in self.records() {
            // Rows are numbered by the revisions that created them.
            if !rows.insert(record.create_revision()) {
                let why = format!("{} was created in one transaction with another object", record.key());
                return Err(fault(damaged(why)));
            }
            let meta = RecordMeta { expires_at_s: expires_at_s(record), ..record.meta().clone() };
            let (op, _) = format::put(&record.with_meta(meta), at_rest).map_err(StoreError::Sealed)?;
            ops.push(op);
            if ops.len() == ROWS_AT_ONCE {
                engine.append(&ops, false).map_err(fault)?;
                ops.clear();
            }
        }
        let marks = [
            Mark::Format(FORMAT),
            Mark::Identity(uuid::Uuid::new_v4().to_string()),
            Mark::Reserved(self.revision),
            Mark::Running(NOWHERE.to_owned()),
        ];
        ops.extend(marks.iter().map(Mark::op));
        engine.append(&ops, true).map_err(fault)?;
        engine.close().map_err(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, Key, Precondition, StoreOptions, Write};

    fn key(name: &str) -> Key {
        Key::new(Resource::parse("pods"), "default", name)
    }

    fn body() -> Body {
        Body::locate(r#"{"metadata":{"name":"a","resourceVersion":""}}"#).unwrap()
    }

    #[tokio::test]
    async fn a_store_that_was_moved_continues_at_its_revision() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::in_memory(StoreOptions::default());
        let meta = RecordMeta::with_uid("u");
        let a = store.commit(Write::create(key("a"), body(), meta.clone())).await.unwrap();
        let a = store.commit(Write::update(key("a"), a.revision, body(), meta.clone())).await.unwrap();
        store.commit(Write::create(key("b"), body(), meta.clone())).await.unwrap();
        let gone = store.commit(Write::delete(key("b"), Precondition::Any)).await.unwrap();
        let inventory = store.inventory().unwrap();
        assert_eq!((inventory.revision(), inventory.len()), (gone.revision, 1));
        assert_eq!(inventory.floors().resources["pods"], gone.revision, "a deletion is a change");
        inventory.write(dir.path(), None, |_| 4_000_000_000).unwrap();
        assert!(inventory.write(dir.path(), None, |_| 0).is_err(), "a store is never overwritten");

        let moved = Store::open_dir(dir.path(), StoreOptions { must_exist: true, ..StoreOptions::default() }).unwrap();
        assert_eq!(moved.current_revision(), gone.revision);
        let record = moved.get(Resource::parse("pods"), "default", "a").unwrap();
        assert_eq!((record.revision(), record.create_revision()), (a.revision, a.revision - 1));
        assert_eq!(record.meta().expires_at_s, 4_000_000_000);
        assert!(moved.watch(Resource::parse("pods"), gone.revision).is_ok());
        assert!(moved.watch(Resource::parse("pods"), gone.revision - 1).is_err(), "its events are not known");
        let next = moved.commit(Write::create(key("c"), body(), meta)).await.unwrap();
        assert_eq!(next.revision, gone.revision + 1);
        moved.close().await;
    }
}
