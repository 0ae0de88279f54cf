//! The behaviour of the store when its disk or its committer fails, and when it is full.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kelson_store::engine::{Engine, EngineError, Op, Sink};
use kelson_store::{Body, Key, Precondition, RecordMeta, Resource, Store, StoreError, StoreOptions, Write};
use parking_lot::Mutex;

#[derive(Clone, Copy, Default, PartialEq)]
enum Fault {
    #[default]
    None,
    Full,
    Sync,
    Panic,
}

#[derive(Default)]
struct Disk {
    fault: Fault,
    /// The number of rows that were appended.
    appended: usize,
    /// The reserve for a full disk. When it is released, the disk accepts writes again.
    ballast: bool,
}

/// An engine that fails on demand and counts its batches. A test can hold it, and it then waits in the next call.
#[derive(Clone, Default)]
struct FaultyEngine(Arc<Mutex<Disk>>, Arc<(AtomicBool, AtomicUsize)>);

impl FaultyEngine {
    fn set(&self, fault: Fault) {
        self.0.lock().fault = fault;
    }
    fn fails(&self) -> Result<(), EngineError> {
        match self.0.lock().fault {
            Fault::None => Ok(()),
            Fault::Full => Err(EngineError::Io { context: "write", source: std::io::ErrorKind::StorageFull.into() }),
            Fault::Sync => Err(EngineError::Sync { context: "write", reason: "I/O error".into() }),
            Fault::Panic => panic!("a fault of the engine"),
        }
    }
}

impl Engine for FaultyEngine {
    fn load(&mut self, _: &mut Sink<'_>) -> Result<(), EngineError> {
        Ok(())
    }
    fn append(&mut self, batch: &[Op], _: bool) -> Result<(), EngineError> {
        let (held, batches) = &*self.1;
        batches.fetch_add(1, Ordering::SeqCst);
        while held.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        self.0.lock().appended += batch.len();
        self.fails()
    }
    fn sync(&mut self) -> Result<(), EngineError> {
        self.fails()
    }
    fn keep_room(&mut self) -> bool {
        self.0.lock().ballast
    }
    fn make_room(&mut self) -> bool {
        let mut disk = self.0.lock();
        if disk.ballast {
            disk.fault = Fault::None;
        }
        std::mem::take(&mut disk.ballast)
    }
    fn blocks(&self) -> bool {
        true
    }
}

fn put(name: &str, payload: usize) -> Write {
    let json =
        format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":""}},"payload":"{}"}}"#, "x".repeat(payload));
    let key = Key::new(Resource::parse("pods"), "default", name);
    Write::put(key, Precondition::Any, Body::locate(json).unwrap(), RecordMeta::with_uid("u"))
}

fn open(engine: &FaultyEngine) -> Store {
    Store::open(Box::new(engine.clone()), StoreOptions::default()).unwrap()
}

#[tokio::test]
async fn a_full_disk_is_reported_until_the_next_write_succeeds() {
    let engine = FaultyEngine::default();
    let store = open(&engine);
    assert_eq!((store.health().not_ready(), store.health().answered_s), (None, None));
    engine.set(Fault::Full);
    assert!(matches!(store.commit(put("a", 1)).await, Err(StoreError::Engine(_))));
    let health = store.health();
    assert!(health.not_ready().is_some() && health.not_alive().is_none(), "time may help: {health:?}");
    engine.set(Fault::None);
    store.commit(put("a", 1)).await.unwrap();
    let health = store.health();
    assert_eq!((health.not_ready(), health.busy_s, health.answered_s.is_some()), (None, 0, true));
}

fn delete(name: &str) -> Write {
    Write::delete(Key::new(Resource::parse("pods"), "default", name), Precondition::Any)
}

#[tokio::test]
async fn on_a_full_disk_deletions_are_stored_and_nothing_else() {
    let engine = FaultyEngine::default();
    engine.0.lock().ballast = true;
    let store = open(&engine);
    for name in ["a", "b", "c"] {
        store.commit(put(name, 1)).await.unwrap();
    }
    engine.set(Fault::Full);
    assert!(matches!(store.commit(put("d", 1)).await, Err(StoreError::Engine(_))));
    assert!(engine.0.lock().ballast, "it is not given up for ordinary writes");
    store.commit(delete("a")).await.unwrap();
    assert!(!engine.0.lock().ballast);
    // The disk accepts writes again, but the space is for deletions and for writes that begin one.
    assert!(matches!(store.commit(put("d", 1)).await, Err(StoreError::Engine(_))));
    assert!(store.health().not_ready().is_some(), "readiness tells it");
    let mut graceful = put("b", 1);
    if let kelson_store::Action::Put { meta, .. } = &mut graceful.action {
        meta.deleting = true;
    }
    store.commit(graceful).await.unwrap();
    store.commit(delete("c")).await.unwrap();
    assert_eq!(store.count(Resource::parse("pods")), 1);
    // Once the reserve can be created again, the store accepts all writes. It checks that once a second.
    engine.0.lock().ballast = true;
    while store.commit(put("d", 1)).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(store.health().not_ready(), None);
}

#[tokio::test]
async fn without_ballast_a_full_disk_refuses_deletions_too() {
    let engine = FaultyEngine::default();
    let store = open(&engine);
    store.commit(put("a", 1)).await.unwrap();
    engine.set(Fault::Full);
    assert!(matches!(store.commit(delete("a")).await, Err(StoreError::Engine(_))));
    engine.set(Fault::None);
    store.commit(delete("a")).await.unwrap();
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_written_until_the_store_is_opened_again() {
    let engine = FaultyEngine::default();
    let store = open(&engine);
    let before = store.commit(put("a", 1)).await.unwrap();
    engine.set(Fault::Sync);
    assert!(matches!(store.commit(put("b", 1)).await, Err(StoreError::Engine(_))));
    // The disk works again, as it does after the kernel has dropped what it could not write.
    engine.set(Fault::None);
    let appended = engine.0.lock().appended;
    assert!(matches!(store.commit(put("c", 1)).await, Err(StoreError::Engine(_))));
    assert!(matches!(store.commit(put("c", 1).relaxed()).await, Err(StoreError::Engine(_))));
    assert!(store.health().not_alive().is_some());
    assert_eq!(store.get(Resource::parse("pods"), "default", "a").unwrap().revision(), before.revision);
    store.close().await;
    assert_eq!(engine.0.lock().appended, appended, "not even the mark of a clean end");
    let store = open(&engine);
    assert_eq!(store.health().not_ready(), None);
    store.commit(put("c", 1)).await.unwrap();
}

#[tokio::test]
async fn a_write_that_is_not_stored_is_not_reported() {
    let engine = FaultyEngine::default();
    let store = open(&engine);
    for stored in [false, true] {
        let create = || {
            let write = put("b", 1);
            Write { precondition: Precondition::Absent, ..write }
        };
        let (held, batches) = &*engine.1;
        held.store(true, Ordering::SeqCst);
        let before = batches.load(Ordering::SeqCst);
        // The committer is busy with one write while two others come for the same key.
        let mut first = Box::pin(store.commit(put("a", 1)));
        let (mut one, mut two) = (Box::pin(store.commit(create())), Box::pin(store.commit(create())));
        begin(&mut first).await;
        while batches.load(Ordering::SeqCst) == before {
            tokio::task::yield_now().await;
        }
        begin(&mut one).await;
        begin(&mut two).await;
        engine.set(if stored { Fault::None } else { Fault::Full });
        held.store(false, Ordering::SeqCst);
        let _ = first.await;
        let (one, two) = (one.await, two.await);
        if stored {
            let there = one.unwrap().revision;
            assert!(matches!(two, Err(StoreError::AlreadyExists { current }) if current.revision() == there));
        } else {
            assert!(matches!(one, Err(StoreError::Engine(_))));
            assert!(matches!(two, Err(StoreError::Engine(_))), "refused for what does not exist: {two:?}");
        }
    }
}

/// Polls a future once, which must not complete it.
async fn begin<T>(future: &mut (impl Future<Output = T> + Unpin)) {
    tokio::select! {
        biased;
        _ = future => panic!("answered at once"),
        () = std::future::ready(()) => {}
    }
}

#[tokio::test]
async fn a_panic_of_the_committer_is_reported_and_writers_are_refused_at_once() {
    let engine = FaultyEngine::default();
    let store = open(&engine);
    let failed = store.failed();
    store.commit(put("a", 1)).await.unwrap();
    engine.set(Fault::Panic);
    let limit = Duration::from_secs(20);
    let answer = tokio::time::timeout(limit, store.commit(put("b", 1))).await.unwrap();
    assert!(matches!(answer, Err(StoreError::Closed)));
    let why = tokio::time::timeout(limit, failed).await.unwrap();
    assert_eq!(why, "the store's committer panicked: a fault of the engine");
    assert!(store.health().not_alive().is_some());
    assert!(matches!(store.commit(put("c", 1)).await, Err(StoreError::Closed)));
    store.close().await;
}

#[tokio::test]
async fn a_full_store_takes_only_what_makes_it_smaller() {
    const MAX: usize = 20_000;
    let store = Store::in_memory(StoreOptions { bytes_max: MAX, ..StoreOptions::default() });
    let mut taken = 0;
    let refused = loop {
        match store.commit(put(&format!("p{taken}"), 1000)).await {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::Full { bytes, limit: MAX } if bytes <= MAX), "{refused}");
    assert!((10..20).contains(&taken), "{taken}");
    assert!(matches!(store.commit(put("p0", 9000)).await, Err(StoreError::Full { .. })), "growth is refused");
    store.commit(put("p0", 1000)).await.unwrap();
    store.commit(put("p0", 10)).await.unwrap();
    store.commit(Write::delete(Key::new(Resource::parse("pods"), "default", "p1"), Precondition::Any)).await.unwrap();
    store.commit(put("again", 1000)).await.unwrap();
}

#[tokio::test]
async fn a_full_namespace_does_not_fill_the_store() {
    const MAX: usize = 20_000;
    let options = StoreOptions { bytes_max: MAX * 3, namespace_bytes_max: MAX, ..StoreOptions::default() };
    let store = Store::in_memory(options);
    let of = |namespace: &str, name: &str| {
        let write = put(name, 1000);
        Write { key: Key::new(write.key.resource, namespace, name), ..write }
    };
    let fill = async |namespace: &str| {
        for n in 0.. {
            if let Err(error) = store.commit(of(namespace, &format!("p{n}"))).await {
                return (n, error);
            }
        }
        unreachable!("it is never full")
    };
    let (taken, refused) = fill("one").await;
    assert!((10..20).contains(&taken), "{taken}");
    let StoreError::NamespaceFull { namespace, bytes, limit: MAX } = refused else { panic!("{refused}") };
    assert!(namespace == "one" && bytes <= MAX, "{namespace}: {bytes}");
    assert_eq!(fill("two").await.0, taken, "the other namespace has as much");
    store.commit(of("", "cluster-scoped")).await.unwrap();
    let gone = Write::delete(Key::new(Resource::parse("pods"), "one", "p0"), Precondition::Any);
    store.commit(gone).await.unwrap();
    store.commit(of("one", "again")).await.unwrap();
    assert!(store.commit(of("one", "more")).await.is_err());
}
