//! Opening a store reports damaged files by name and serves nothing from them. Copies of a running store are complete, report their
//! content, and continue at revisions that no client has seen.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use kelson_store::engine::{Engine, EngineError, Entry, Op, SqliteEngine};
use kelson_store::{
    AtRest, Body, Key, Opened, RecordMeta, Resource, SealError, Sealed, Store, StoreError, StoreOptions, Write, Writer,
    verify,
};

fn create(name: &str) -> Write {
    let json = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":""}},"payload":"secret of {name}"}}"#);
    Write::create(
        Key::new(Resource::parse("secrets"), "default", name),
        Body::locate(json).unwrap(),
        RecordMeta::with_uid("u"),
    )
}

fn open(dir: &Path) -> Result<Store, StoreError> {
    Store::open_dir(dir, StoreOptions::default())
}

async fn filled(dir: &Path, options: StoreOptions) {
    let store = Store::open_dir(dir, options).unwrap();
    for n in 0..20 {
        store.commit(create(&format!("s{n}"))).await.unwrap();
    }
    store.close().await;
}

/// Changes a stored row without the store.
fn change_row(dir: &Path, change: impl Fn(&mut Vec<u8>)) {
    let mut engine = SqliteEngine::open(dir).unwrap();
    let mut rows = Vec::new();
    engine
        .load(&mut |entry| {
            if let Entry::Record { id, value } = entry {
                rows.push((id, value.to_vec()));
            }
            Ok(())
        })
        .unwrap();
    let (id, mut row) = rows.swap_remove(7);
    change(&mut row);
    engine.append(&[Op::Put { id, head: row, body: Vec::new().into() }], true).unwrap();
}

#[tokio::test]
async fn a_flipped_bit_of_a_record_stops_the_start_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), StoreOptions::default()).await;
    change_row(dir.path(), |row| *row.last_mut().unwrap() ^= 1);
    let Err(StoreError::Open(error)) = open(dir.path()) else { panic!("opened with a damaged record") };
    assert!(matches!(&*error, EngineError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("secrets default/s"), "{error}");
    assert!(!error.to_string().contains("secret of"), "its contents are nobody's: {error}");
    let Err(StoreError::Open(error)) = verify(dir.path()) else { panic!("verified with a damaged record") };
    assert!(error.to_string().contains("checksum"), "{error}");
}

#[tokio::test]
async fn a_row_under_another_number_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), StoreOptions::default()).await;
    let mut engine = SqliteEngine::open(dir.path()).unwrap();
    let mut first = None;
    let mut sink = |entry: Entry<'_>| {
        if let (Entry::Record { value, .. }, None) = (entry, &first) {
            first = Some(value.to_vec());
        }
        Ok(())
    };
    engine.load(&mut sink).unwrap();
    engine.append(&[Op::Put { id: 9999, head: first.unwrap(), body: Vec::new().into() }], true).unwrap();
    drop(engine);
    assert!(open(dir.path()).is_err());
}

#[tokio::test]
async fn a_snapshot_of_a_running_store_is_whole_and_can_be_continued() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(dir.path()).unwrap();
    for n in 0..20 {
        store.commit(create(&format!("s{n}"))).await.unwrap();
    }
    let copy = to.path().join("copy");
    let contents = store.save(&copy).unwrap();
    let last = store.commit(create("after")).await.unwrap().revision;
    assert_eq!((contents.records["secrets"], contents.revision), (20, last - 1));
    assert_eq!(verify(&copy).unwrap(), contents);
    assert!(store.save(&copy).is_err(), "nothing is written over");
    let restored = open(&copy).unwrap();
    assert_eq!(restored.identity(), store.identity());
    assert_eq!(restored.count(Resource::parse("secrets")), 20);
    assert!(restored.current_revision() > last, "no client has seen revisions it will see again");
    let from = restored.watch(Resource::parse("secrets"), last);
    assert!(matches!(from, Err(StoreError::Compacted { .. })), "watchers list again");
}

#[tokio::test]
async fn a_truncated_snapshot_is_rejected() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(dir.path()).unwrap();
    for n in 0..200 {
        store.commit(create(&format!("s{n}"))).await.unwrap();
    }
    store.save(to.path()).unwrap();
    let file = to.path().join("store.db");
    let len = std::fs::metadata(&file).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(len / 2).unwrap();
    assert!(matches!(verify(to.path()), Err(StoreError::Open(_))));
}

/// Encrypts by inverting bits, with the key of a number that tests change.
struct Turned(std::sync::atomic::AtomicU32);

impl AtRest for Turned {
    fn writer(&self, resource: Resource) -> Option<Writer> {
        let secret = resource.as_str() == "secrets";
        Some(if secret { Writer(self.0.load(std::sync::atomic::Ordering::SeqCst)) } else { Writer::CLEAR })
    }
    fn reads_clear(&self, resource: Resource) -> bool {
        resource.as_str() != "secrets"
    }
    fn seal(&self, _: &Key, plain: &[u8]) -> Result<Option<Sealed>, SealError> {
        let writer = self.writer(Resource::parse("secrets")).unwrap();
        if writer.0 == 99 {
            return Err(SealError::Unavailable("the key service is away".into()));
        }
        let mut bytes = vec![writer.0 as u8];
        bytes.extend(plain.iter().map(|b| b ^ 0xff));
        Ok(Some(Sealed { bytes, writer }))
    }
    fn open(&self, _: &Key, sealed: &[u8]) -> Result<Opened, SealError> {
        let plain = sealed[1..].iter().map(|b| b ^ 0xff).collect();
        Ok(Opened { plain, writer: Writer(u32::from(sealed[0])) })
    }
}

#[tokio::test]
async fn encrypted_records_are_clear_in_memory_alone() {
    let dir = tempfile::tempdir().unwrap();
    let turned = Arc::new(Turned(1.into()));
    let with = || StoreOptions { at_rest: Some(turned.clone()), ..StoreOptions::default() };
    filled(dir.path(), with()).await;
    for file in ["store.db", "store.db-wal"] {
        let bytes = std::fs::read(dir.path().join(file)).unwrap_or_default();
        assert!(!bytes.windows(9).any(|w| w == b"secret of"), "{file} shows a secret");
    }
    let Err(StoreError::Open(error)) = open(dir.path()) else { panic!("opened without the key") };
    assert!(matches!(&*error, EngineError::Sealed { .. }), "{error}");
    let verified = verify(dir.path()).unwrap();
    assert_eq!((verified.encrypted, verified.records["secrets"]), (20, 20));

    let store = Store::open_dir(dir.path(), with()).unwrap();
    let record = store.get(Resource::parse("secrets"), "default", "s3").unwrap();
    assert!(std::str::from_utf8(&record.bytes()).unwrap().contains("secret of s3"));
    assert!(!store.is_stale(&record));
    turned.0.store(2, std::sync::atomic::Ordering::SeqCst);
    assert!(store.is_stale(&record), "new records are written with another key");
    let clear = store.commit(Write::create(
        Key::new(Resource::parse("pods"), "default", "p"),
        Body::locate(r#"{"metadata":{"resourceVersion":""}}"#).unwrap(),
        RecordMeta::default(),
    ));
    assert!(!store.is_stale(&clear.await.unwrap().record));
    turned.0.store(99, std::sync::atomic::Ordering::SeqCst);
    let before = store.current_revision();
    assert!(matches!(store.commit(create("more")).await, Err(StoreError::Sealed(_))));
    turned.0.store(2, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(store.commit(create("more")).await.unwrap().revision, before + 1, "a refused write took no revision");
}

#[tokio::test]
async fn what_must_be_encrypted_and_is_not_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), StoreOptions::default()).await;
    let turned = Arc::new(Turned(1.into()));
    let options = StoreOptions { at_rest: Some(turned), ..StoreOptions::default() };
    let Err(StoreError::Open(error)) = Store::open_dir(dir.path(), options) else { panic!("served as genuine") };
    assert!(matches!(&*error, EngineError::Sealed { .. }), "{error}");
    assert!(error.to_string().contains("secrets/default/s") && error.to_string().contains("identity"), "{error}");
}

/// Encrypts like [`Turned`], and also reads unencrypted records.
struct Migrating(Turned);

impl AtRest for Migrating {
    fn writer(&self, resource: Resource) -> Option<Writer> {
        self.0.writer(resource)
    }
    fn seal(&self, key: &Key, plain: &[u8]) -> Result<Option<Sealed>, SealError> {
        self.0.seal(key, plain)
    }
    fn reads_clear(&self, _: Resource) -> bool {
        true
    }
    fn open(&self, key: &Key, sealed: &[u8]) -> Result<Opened, SealError> {
        self.0.open(key, sealed)
    }
}

#[tokio::test]
async fn clear_values_are_gone_from_the_files_once_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    // Some records are deleted while they are unencrypted: their bytes stay in free pages of the file.
    let store = open(dir.path()).unwrap();
    for n in 0..200 {
        store.commit(create(&format!("s{n}"))).await.unwrap();
    }
    for n in (0..200).step_by(3) {
        let key = Key::new(Resource::parse("secrets"), "default", &format!("s{n}"));
        store.commit(Write::delete(key, kelson_store::Precondition::Any)).await.unwrap();
    }
    store.close().await;
    let shown = || {
        let all = std::fs::read_dir(dir.path()).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
        all.map(|bytes| bytes.windows(9).filter(|w| w == b"secret of").count()).sum::<usize>()
    };
    assert!(shown() > 100, "{}", shown());
    let with = || {
        let migrating = Arc::new(Migrating(Turned(1.into())));
        StoreOptions { at_rest: Some(migrating), ..StoreOptions::default() }
    };
    let store = Store::open_dir(dir.path(), with()).unwrap();
    for n in (0..200).filter(|n| n % 3 != 0) {
        let name = format!("s{n}");
        let Write { key, action, .. } = create(&name);
        let kelson_store::Action::Put { body, meta } = action else { panic!("a create") };
        store.commit(Write::put(key, kelson_store::Precondition::Exists, body, meta)).await.unwrap();
    }
    store.close().await;
    assert_eq!(shown(), 0);
    let store = Store::open_dir(dir.path(), with()).unwrap();
    assert_eq!(store.count(Resource::parse("secrets")), 133);
}
