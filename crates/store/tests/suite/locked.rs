//! Resources whose key service is not available when the store is opened, and comes later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kelson_store::{
    AtRest, Body, Key, Opened, RecordMeta, Resource, SealError, Sealed, Store, StoreError, StoreOptions, Write, Writer,
};

/// Encrypts secrets and config maps (by turning bits around) while its key service is there, and counts how often it was asked.
#[derive(Default)]
struct Service {
    away: std::sync::atomic::AtomicBool,
    asked: AtomicU32,
}

impl AtRest for Service {
    fn writer(&self, resource: Resource) -> Option<Writer> {
        Some(if self.reads_clear(resource) { Writer::CLEAR } else { Writer(1) })
    }
    fn reads_clear(&self, resource: Resource) -> bool {
        resource.as_str() == "pods"
    }
    fn seal(&self, _: &Key, plain: &[u8]) -> Result<Option<Sealed>, SealError> {
        Ok(Some(Sealed { bytes: plain.iter().map(|b| b ^ 0xff).collect(), writer: Writer(1) }))
    }
    fn open(&self, _: &Key, sealed: &[u8]) -> Result<Opened, SealError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.away.load(Ordering::SeqCst) {
            return Err(SealError::Unavailable("connection refused".to_owned()));
        }
        Ok(Opened { plain: sealed.iter().map(|b| b ^ 0xff).collect(), writer: Writer(1) })
    }
}

fn create(resource: &str, name: &str) -> Write {
    let json = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":""}},"data":"of {name}"}}"#);
    let key = Key::new(Resource::parse(resource), "default", name);
    Write::create(key, Body::locate(json).unwrap(), RecordMeta::with_uid("u"))
}

#[tokio::test(start_paused = true)]
async fn a_resource_is_locked_until_its_key_service_answers_and_others_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let service = Arc::new(Service::default());
    let with = || StoreOptions { at_rest: Some(service.clone()), ..StoreOptions::default() };
    let store = Store::open_dir(dir.path(), with()).unwrap();
    for n in 0..50 {
        for resource in ["secrets", "configmaps", "pods"] {
            store.commit(create(resource, &format!("x{n}"))).await.unwrap();
        }
    }
    let last = store.current_revision();
    store.close().await;

    service.away.store(true, Ordering::SeqCst);
    let store = Store::open_dir(dir.path(), with()).unwrap();
    let [secrets, maps, pods] = ["secrets", "configmaps", "pods"].map(Resource::parse);
    assert_eq!(service.asked.load(Ordering::SeqCst), 2, "once for each resource, not for each record");
    assert_eq!((store.current_revision(), store.count(pods)), (last, 50));
    let away = SealError::Unavailable("connection refused".to_owned());
    assert_eq!(store.all_locked(), [(maps, away.clone()), (secrets, away.clone())]);
    assert_eq!((store.locked(secrets), store.locked(pods)), (Some(away), None));
    let health = store.health();
    assert!(health.not_ready().is_some_and(|why| why.contains("configmaps cannot be decrypted")), "{health:?}");
    assert_eq!(health.not_alive(), None, "a restart would not help");
    assert!(matches!(store.commit(create("secrets", "x0")).await, Err(StoreError::Sealed(_))), "it exists, unseen");
    assert!(matches!(store.commit(create("secrets", "new")).await, Err(StoreError::Sealed(_))));
    store.commit(create("pods", "new")).await.unwrap();
    let to = tempfile::tempdir().unwrap();
    assert!(matches!(store.save(to.path()), Err(StoreError::Sealed(_))), "a snapshot would lack them");
    let mut early = store.watch(secrets, store.current_revision()).unwrap();

    service.away.store(false, Ordering::SeqCst);
    store.run_unlock().await;
    assert_eq!((store.count(secrets), store.count(maps), store.all_locked()), (50, 50, Vec::new()));
    let record = store.get(secrets, "default", "x7").unwrap();
    assert!(std::str::from_utf8(&record.bytes()).unwrap().contains("of x7") && record.revision() < last);
    assert!(matches!(early.next().await, Err(StoreError::Compacted { .. })), "its reader lists again");
    let mut later = store.watch(secrets, last).unwrap();
    store.commit(create("secrets", "new")).await.unwrap();
    assert_eq!(later.next().await.unwrap().len(), 1);
    assert_eq!((store.health().not_ready(), store.current_revision()), (None, last + 2));
    store.close().await;
    assert_eq!(Store::open_dir(dir.path(), with()).unwrap().count(secrets), 51);
}

#[tokio::test]
async fn a_locked_store_that_is_closed_has_lost_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let service = Arc::new(Service::default());
    let with = || StoreOptions { at_rest: Some(service.clone()), ..StoreOptions::default() };
    let store = Store::open_dir(dir.path(), with()).unwrap();
    let last = store.commit(create("secrets", "s")).await.unwrap().revision;
    store.close().await;
    service.away.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let store = Store::open_dir(dir.path(), with()).unwrap();
        assert_eq!((store.count(Resource::parse("secrets")), store.current_revision()), (0, last));
        store.close().await;
    }
    service.away.store(false, Ordering::SeqCst);
    assert_eq!(Store::open_dir(dir.path(), with()).unwrap().count(Resource::parse("secrets")), 1);
}
