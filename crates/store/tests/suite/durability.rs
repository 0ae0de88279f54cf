//! The durable store: opening again, locks, damage, and the return of free space.
#![allow(missing_docs, clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use kelson_store::engine::{EngineError, SqliteEngine};
use kelson_store::{Body, Key, Precondition, RecordMeta, Resource, Store, StoreError, StoreOptions, Write};

fn pods() -> Resource {
    Resource::parse("pods")
}

fn body(name: &str, payload: &str) -> Body {
    let json = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":""}},"payload":"{payload}"}}"#);
    Body::locate(json).unwrap()
}

fn create(name: &str, payload: &str) -> Write {
    Write::create(Key::new(pods(), "default", name), body(name, payload), RecordMeta::with_uid("u"))
}

fn open(dir: &Path) -> Result<Store, StoreError> {
    Store::open_dir(dir, StoreOptions::default())
}

#[tokio::test]
async fn counters_count_writes_batches_and_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let first = store.commit(create("a", "x")).await.unwrap().record.len() as u64;
    let one = store.stats();
    assert_eq!((one.writes, one.batches, one.syncs, one.bytes), (1, 1, 1, first));
    store.commit(create("b", "x").relaxed()).await.unwrap();
    assert!(store.commit(create("b", "refused")).await.is_err());
    let two = store.stats();
    assert_eq!(
        (two.writes, two.batches, two.syncs),
        (2, 2, 1),
        "a relaxed write syncs nothing, a refused one counts not"
    );
    let writers = (0..32).map(|n| {
        let store = store.clone();
        tokio::spawn(async move { store.commit(create(&format!("c{n}"), "x")).await.unwrap() })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let many = store.stats();
    assert_eq!(many.writes, 34);
    assert!(many.syncs - two.syncs <= 32 && many.batches - two.batches == many.syncs - two.syncs);
    store.close().await;
}

#[tokio::test]
async fn a_store_opens_again_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("new/data");
    let store = open(&data).unwrap();
    let identity = store.identity().to_owned();
    for n in 0..50 {
        store.commit(create(&format!("p{n}"), "x")).await.unwrap();
    }
    let deleted = store.commit(Write::delete(Key::new(pods(), "default", "p7"), Precondition::Any)).await.unwrap();
    assert!(
        deleted.record.bytes().windows(4).any(|part| part == deleted.revision.to_string().as_bytes())
            || deleted.revision < 1000
    );
    let before = store.list(pods(), None, None, None);
    store.close().await;

    for (path, mode) in [(data.clone(), 0o700), (data.join("store.db"), 0o600)] {
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
    }
    let store = open(&data).unwrap();
    assert_eq!((store.identity(), store.current_revision()), (identity.as_str(), deleted.revision));
    let after = store.list(pods(), None, None, None);
    assert_eq!((before.len(), after.len()), (49, 49));
    assert!(before.iter().zip(after.iter()).all(|(a, b)| a.bytes() == b.bytes() && a.meta() == b.meta()));
    assert!(store.watch(pods(), deleted.revision).is_ok(), "nothing happened since: the watcher goes on");
    assert!(matches!(store.watch(pods(), deleted.revision - 1), Err(StoreError::Compacted { .. })));
    assert!(store.watch(Resource::parse("secrets"), 1).is_ok(), "nothing ever happened there");
}

#[tokio::test]
async fn a_directory_has_one_user() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    store.commit(create("a", "x")).await.unwrap();
    let Err(StoreError::Open(error)) = open(dir.path()) else { panic!("opened twice") };
    assert!(matches!(&*error, EngineError::InUse(_)), "{error}");
    store.commit(create("b", "x")).await.unwrap();
    store.close().await;
    assert_eq!(open(dir.path()).unwrap().count(pods()), 2);
}

#[tokio::test]
async fn damage_and_foreign_files_are_named() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage); 3] = [
        ("not a database", |dir| std::fs::write(dir.join("store.db"), "x".repeat(8192)).unwrap()),
        ("cut short", |dir| {
            let file = std::fs::OpenOptions::new().write(true).open(dir.join("store.db")).unwrap();
            let len = file.metadata().unwrap().len();
            file.set_len(len / 2).unwrap();
        }),
        ("overwritten", |dir| {
            let mut bytes = std::fs::read(dir.join("store.db")).unwrap();
            let len = bytes.len();
            bytes[4096..len].fill(0x5a);
            std::fs::write(dir.join("store.db"), bytes).unwrap();
        }),
    ];
    for (what, damage) in cases {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        for n in 0..200 {
            store.commit(create(&format!("p{n}"), &"x".repeat(500))).await.unwrap();
        }
        store.close().await;
        damage(dir.path());
        let Err(StoreError::Open(error)) = open(dir.path()) else { panic!("{what}: opened") };
        assert!(matches!(&*error, EngineError::Corrupt { .. }), "{what}: {error}");
    }
}

#[tokio::test]
async fn free_space_is_given_back() {
    use kelson_store::engine::{Engine, Op};
    let dir = tempfile::tempdir().unwrap();
    let mut engine = SqliteEngine::open(dir.path()).unwrap();
    let put = |id| Op::Put { id, head: vec![1; 100], body: vec![2; 3000].into() };
    engine.append(&(1..=4000).map(put).collect::<Vec<_>>(), true).unwrap();
    engine.append(&(1..=3900).map(|id| Op::Remove { id }).collect::<Vec<_>>(), true).unwrap();
    let mut steps = 0;
    while engine.maintain().unwrap() {
        steps += 1;
    }
    assert!(steps > 5, "{steps} steps");
    drop(engine);
    let size = std::fs::metadata(dir.path().join("store.db")).unwrap().len();
    assert!(size < 6 << 20, "{size} bytes are left");
    let mut rows = 0;
    SqliteEngine::open(dir.path())
        .unwrap()
        .load(&mut |_| {
            rows += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(rows, 100);
}
