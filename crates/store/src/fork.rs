//! Forks of a store. A fork begins with the records of the original and then changes independently. The two share a record until one of
//! them writes it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kelson_meta::Clock;
use parking_lot::{Mutex, RwLock};

use crate::at_rest::Writers;
use crate::commit::Committer;
use crate::engine::MemoryEngine;
use crate::event::EventKind;
use crate::expiry::Expiry;
use crate::health::HealthBoard;
use crate::limits::{LOG_BYTES_MAX, NAMESPACE_PART, STORE_BYTES_MAX};
use crate::locked::LockedResources;
use crate::queue::Queue;
use crate::recent::RecentRecords;
use crate::room::Room;
use crate::samples::Samples;
use crate::shared::Shared;
use crate::state::State;
use crate::stats::Counters;
use crate::store::{Commits, Store};
use crate::waiting::RevisionWaiters;

impl Store {
    /// Makes an independent store in memory with this store's current records, at the same revision. It takes the time of a walk over the
    /// records, and memory only for later writes. The log is not copied: the fork can be watched from now on.
    #[must_use]
    pub fn fork(&self, clock: Arc<dyn Clock>) -> Self {
        let (revision, tables) = self.shared().state.read().tables();
        let mut state = State::new(revision, revision, LOG_BYTES_MAX);
        let expiry = Expiry::default();
        let mut room = Room::new(STORE_BYTES_MAX, STORE_BYTES_MAX / NAMESPACE_PART);
        for (resource, table) in tables {
            for record in table.iter_from(0) {
                expiry.note(EventKind::Added, record, None);
                room.add(record);
            }
            state.slot_mut(resource).table = table;
        }
        let shared = Arc::new(Shared {
            state: RwLock::new(state),
            queue: Queue::default(),
            frames: Arc::default(),
            waiters: RevisionWaiters::default(),
            recent: RecentRecords::default(),
            samples: Samples::default(),
            expiry,
            writers: Writers::new(None),
            locked: LockedResources::default(),
            counters: Counters::default(),
            health: HealthBoard::default(),
            clock,
            identity: uuid::Uuid::new_v4().to_string(),
            closed: AtomicBool::new(false),
        });
        let committer = Committer::new(Box::new(MemoryEngine), Arc::clone(&shared), revision, room, Vec::new());
        Self::over(shared, Commits::Inline(Mutex::new(committer)))
    }
}

#[cfg(test)]
mod tests {
    use kelson_meta::SystemClock;

    use super::*;
    use crate::{Body, Key, Precondition, RecordMeta, Resource, StoreError, StoreOptions, Write};

    fn body(text: &str) -> Body {
        Body::locate(format!(r#"{{"data":"{text}","metadata":{{"resourceVersion":""}}}}"#)).unwrap()
    }

    fn key(name: &str) -> Key {
        Key::new(Resource::parse("things"), "ns", name)
    }

    fn texts(store: &Store) -> Vec<String> {
        let all = store.list(Resource::parse("things"), None, None, None);
        all.iter().map(|r| String::from_utf8(r.bytes().to_vec()).unwrap()).collect()
    }

    #[tokio::test]
    async fn original_and_fork_change_independently() {
        let store = Store::in_memory(StoreOptions::default());
        let create = |name: &str| Write::create(key(name), body(name), RecordMeta::default());
        for name in ["a", "b"] {
            store.commit(create(name)).await.unwrap();
        }
        let at = store.current_revision();
        let fork = store.fork(Arc::new(SystemClock));
        assert_eq!((fork.current_revision(), texts(&fork)), (store.current_revision(), texts(&store)));
        assert_ne!(fork.identity(), store.identity());
        let things = Resource::parse("things");
        let shared = |s: &Store| s.get(things, "ns", "a").unwrap();
        assert!(Arc::ptr_eq(&shared(&store), &shared(&fork)), "an unchanged record exists once");

        let mut cursor = fork.watch(things, fork.current_revision()).unwrap();
        fork.commit(Write::put(key("a"), Precondition::Exists, body("other"), RecordMeta::default())).await.unwrap();
        store.commit(Write::delete(key("b"), Precondition::Exists)).await.unwrap();
        fork.commit(create("c")).await.unwrap();
        assert_eq!((texts(&store).len(), texts(&fork).len()), (1, 3));
        assert!(texts(&store)[0].contains("\"a\"") && texts(&fork)[0].contains("\"other\""));
        assert_eq!(fork.current_revision(), at + 2, "revisions go on from those of the original");
        let seen: Vec<u64> = cursor.next().await.unwrap().iter().map(|event| event.revision).collect();
        assert_eq!(seen, [at + 1, at + 2]);
        assert!(matches!(fork.watch(things, at - 1), Err(StoreError::Compacted { .. })), "the past is the original's");
        drop(store);
        fork.commit(create("d")).await.unwrap();
    }
}
