//! Moves between an embedded store and a real etcd.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use kelson_etcd::proto::{KeyValue, LeaseTimeToLiveRequest, PutRequest, RangeRequest};
use kelson_etcd_store::MediaType;
use kelson_etcd_store::migrate::{IntoEtcd, MoveError, into_embedded, into_etcd, place};
use kelson_store::{AtRest, Body, Key, Precondition, RecordMeta, Resource, Store, StoreError, StoreOptions, Write};
use kelson_tasks::Tasks;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::encrypted::{KEY, encryption};
use super::fixture::{Etcd, body, config_map, key, meta, resource};

/// Kinds that are stored as protobuf, encrypted, as JSON, and with a lease.
const KINDS: [&str; 4] = ["configmaps", "secrets", "example.com/widgets", "events"];
const NAMES: u64 = 12;

/// Pseudorandom numbers (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn object(kind: &str, name: &str, value: u64) -> Value {
    let metadata = json!({"name": name, "namespace": "default", "uid": "8f2c1f0e-6c1e-4b8a-9d8e-0123456789ab",
        "labels": {"value": value.to_string()}, "resourceVersion": ""});
    match kind {
        "configmaps" => {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": value.to_string()}, "metadata": metadata})
        }
        "secrets" => json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata}),
        "events" => {
            json!({"apiVersion": "v1", "kind": "Event", "involvedObject": {}, "count": value, "metadata": metadata})
        }
        _ => json!({"apiVersion": "example.com/v1", "kind": "Widget", "spec": {"n": value}, "metadata": metadata}),
    }
}

/// The state of an object in a model: its revision, the revision that created it, and its value.
type Model = BTreeMap<(usize, String), (u64, u64, u64)>;

fn now_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

/// Makes random writes, and returns the model and the last revision of a change of each kind.
async fn history(store: &Store, dice: &mut Dice, writes: u64) -> (Model, [u64; 4]) {
    let (mut model, mut last) = (Model::new(), [0; 4]);
    for value in 0..writes {
        let kind = usize::try_from(dice.below(4)).unwrap();
        let name = format!("o{}", dice.below(NAMES));
        let place = (kind, name.clone());
        let expires_at_s = if KINDS[kind] == "events" { now_s() + 3600 } else { 0 };
        let meta = RecordMeta { expires_at_s, ..meta() };
        let new = || body(&object(KINDS[kind], &name, value));
        let key = key(KINDS[kind], &name);
        let write = match model.get(&place) {
            Some(_) if dice.below(3) == 0 => Write::delete(key, Precondition::Any),
            Some((revision, ..)) => Write::update(key, *revision, new(), meta),
            None => Write::create(key, new(), meta),
        };
        let is_deletion = matches!(write.action, kelson_store::Action::Delete { .. });
        let revision = store.commit(write).await.unwrap().revision;
        last[kind] = revision;
        if is_deletion {
            model.remove(&place);
        } else {
            let created = model.get(&place).map_or(revision, |(_, created, _)| *created);
            model.insert(place, (revision, created, value));
        }
    }
    (model, last)
}

/// Asserts that a store has what the model has.
fn check(store: &Store, model: &Model) {
    assert_eq!(store.counts().iter().map(|(_, count)| count).sum::<usize>(), model.len());
    for ((kind, name), (revision, created, value)) in model {
        let record = store.get(resource(KINDS[*kind]), "default", name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!((record.revision(), record.create_revision()), (*revision, *created), "{name}");
        assert_eq!(record.meta().labels.get("value"), Some(value.to_string().as_str()), "{name}");
        let tree: Value = serde_json::from_slice(&record.bytes()).unwrap();
        assert_eq!(tree["metadata"]["resourceVersion"], revision.to_string());
    }
}

async fn all(etcd: &Etcd) -> BTreeMap<String, KeyValue> {
    let request = RangeRequest {
        key: b"/registry/".to_vec().into(),
        range_end: b"/registry0".to_vec().into(),
        ..Default::default()
    };
    let kvs = etcd.client().range(request).await.unwrap().kvs;
    kvs.into_iter().map(|kv| (String::from_utf8(kv.key.to_vec()).unwrap(), kv)).collect()
}

fn options(data_dir: &Path, at_rest: Option<Arc<dyn AtRest>>) -> IntoEtcd {
    let store = StoreOptions { at_rest, ..StoreOptions::default() };
    IntoEtcd { data_dir: data_dir.to_path_buf(), prefix: "/registry".to_owned(), media: MediaType::Protobuf, store }
}

fn open(data_dir: &Path, at_rest: Option<Arc<dyn AtRest>>) -> Store {
    let options = StoreOptions { at_rest, ..StoreOptions::default() };
    Store::open_dir(&place::store(data_dir), options).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_random_history_is_the_same_in_etcd_and_back() {
    let tasks = Tasks::root("test");
    for seed in [1, 20_261_128, 77] {
        let (dir, keys, mut dice) = (TempDir::new().unwrap(), TempDir::new().unwrap(), Dice(seed));
        let providers = json!([{"aesgcm": {"keys": [{"name": "one", "secret": KEY}]}}]);
        let at_rest = encryption(&keys, providers, &tasks).await;
        let store = open(dir.path(), Some(at_rest.clone()));
        let (model, last) = history(&store, &mut dice, 200).await;
        let revision = store.current_revision();
        store.close().await;

        let moved = into_etcd(options(dir.path(), Some(at_rest.clone()))).await.unwrap();
        assert_eq!((moved.revision, moved.objects), (revision, model.len()), "seed {seed}");
        assert!(!place::has_store(dir.path()) && moved.aside.exists());
        let mut etcd = Etcd::on(&place::member_data(dir.path())).await;
        let header =
            etcd.client().range(RangeRequest { key: b"x".to_vec().into(), ..Default::default() }).await.unwrap().header;
        assert_eq!(header.unwrap().revision, i64::try_from(revision).unwrap());
        let stored = all(&etcd).await;
        for ((kind, name), (revision, created, _)) in &model {
            let path = if KINDS[*kind] == "events" { "events" } else { KINDS[*kind] };
            let kv = &stored[&format!("/registry/{path}/default/{name}")];
            let version = if revision == created { 1 } else { 2 };
            let of = |n: u64| i64::try_from(n).unwrap();
            assert_eq!(
                (kv.mod_revision, kv.create_revision, kv.version),
                (of(*revision), of(*created), version),
                "{name}"
            );
            assert_eq!(KINDS[*kind] == "secrets", kv.value.starts_with(b"k8s:enc:aesgcm:v1:one:"), "{name}");
            assert_eq!(
                KINDS[*kind] == "configmaps",
                kv.value.starts_with(b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap"),
                "{name}"
            );
            if KINDS[*kind] == "events" {
                let ask = LeaseTimeToLiveRequest { id: kv.lease, keys: false };
                let left = etcd.client().lease_time_to_live(ask).await.unwrap().ttl;
                assert!((3500..=3661).contains(&left), "{left}");
            } else {
                assert_eq!(kv.lease, 0);
            }
        }
        // The floors are beside the objects.
        assert_eq!(stored.len(), model.len() + 1);

        // Others may write before the store is opened.
        etcd.put("/registry/kelson/members/a", b"up").await;
        let store = etcd.try_open(Some(at_rest.clone())).await.unwrap();
        let now = store.current_revision();
        assert!(now > revision, "{now}");
        check(&store, &model);
        for (kind, last) in KINDS.iter().zip(last) {
            assert!(store.watch(resource(kind), last).is_ok(), "{kind}: a watch since its last change continues");
            assert!(matches!(store.watch(resource(kind), last - 1), Err(StoreError::Compacted { .. })), "{kind}");
        }
        assert!(store.watch(resource("pods"), 1).is_ok(), "there never was one");
        let made = Write::create(key("configmaps", "next"), body(&config_map("next", "1")), meta());
        assert!(store.commit(made).await.unwrap().revision > now);
        store.commit(Write::delete(key("configmaps", "next"), Precondition::Any)).await.unwrap();
        store.close().await;
        // What was written is there after a restart of etcd.
        etcd.kill().await;
        etcd.run().await;
        let again = etcd.try_open(Some(at_rest.clone())).await.unwrap();
        check(&again, &model);
        let current = again.current_revision();
        assert!(current > now + 1);
        again.close().await;

        let back = etcd.options(&tasks, Some(at_rest.clone()));
        let moved = into_embedded(dir.path(), back, 3600, std::future::ready(())).await.unwrap();
        assert_eq!((moved.revision, moved.objects), (current, model.len()));
        let store = open(dir.path(), Some(at_rest));
        assert_eq!(store.current_revision(), current);
        check(&store, &model);
        assert!(store.watch(resource("secrets"), current).is_ok());
        for record in store.list(resource("events"), None, None, None).iter() {
            assert!(record.meta().expires_at_s > now_s());
        }
        store.close().await;
    }
}

/// Each start after a move read all changes since, which took longer than a start may, so that the server never ran again.
#[tokio::test(flavor = "multi_thread")]
async fn many_changes_since_a_move_do_not_delay_a_start() {
    const CLIENTS: usize = 64;
    const CHANGES: usize = 10_240;
    let dir = TempDir::new().unwrap();
    let store = open(dir.path(), None);
    let (model, last) = history(&store, &mut Dice(3), 60).await;
    let revision = store.current_revision();
    store.close().await;
    into_etcd(options(dir.path(), None)).await.unwrap();
    let etcd = Etcd::on(&place::member_data(dir.path())).await;
    let writers: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let mut client = etcd.client();
            tokio::spawn(async move {
                for _ in 0..CHANGES / CLIENTS {
                    let key = format!("/registry/kelson/members/{n}").into_bytes().into();
                    client.put(PutRequest { key, ..Default::default() }).await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let store = etcd.open().await;
    check(&store, &model);
    let now = store.current_revision();
    assert!(now >= revision + CHANGES as u64, "{now}");
    assert!(store.watch(resource("secrets"), now - 5000).is_ok(), "recent changes are read");
    for (kind, last) in KINDS.iter().zip(last) {
        assert!(matches!(store.watch(resource(kind), last), Err(StoreError::Compacted { .. })), "{kind}");
    }
}

/// As `kelson snapshot save` and `restore` do, and then `kelson server --cluster-init`.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_etcd_becomes_another_etcd() {
    const SKIPPED: u64 = 1_000_000_000;
    let (tasks, keys, mut dice) = (Tasks::root("test"), TempDir::new().unwrap(), Dice(5));
    let providers = json!([{"aesgcm": {"keys": [{"name": "one", "secret": KEY}]}}]);
    let at_rest = encryption(&keys, providers, &tasks).await;
    let etcd = Etcd::start().await;
    let (store, other) =
        (etcd.try_open(Some(at_rest.clone())).await.unwrap(), etcd.try_open(Some(at_rest.clone())).await.unwrap());
    let (model, _) = history(&store, &mut dice, 80).await;
    let revision = store.current_revision();
    let dir = TempDir::new().unwrap();
    // Another server saves it, and has all that was acknowledged.
    other.catch_up().await.unwrap();
    let contents = other.save(&place::store(dir.path())).unwrap();
    assert_eq!(kelson_store::verify(&place::store(dir.path())).unwrap().records, contents.records);
    assert!(contents.revision >= revision);
    assert_eq!(contents.records.values().sum::<usize>(), model.len());
    assert_eq!(contents.encrypted, contents.records.get("secrets").copied().unwrap_or(0));
    store.commit(Write::create(key("configmaps", "later"), body(&config_map("later", "1")), meta())).await.unwrap();
    store.close().await;

    let moved = into_etcd(options(dir.path(), Some(at_rest.clone()))).await.unwrap();
    assert_eq!(moved.objects, model.len());
    assert!(moved.revision >= revision + SKIPPED, "no client sees a revision twice: {moved:?}");
    let restored = Etcd::on(&place::member_data(dir.path())).await;
    for (path, kv) in all(&restored).await {
        if path.starts_with("/registry/events/") {
            let ask = LeaseTimeToLiveRequest { id: kv.lease, keys: false };
            let left = restored.client().lease_time_to_live(ask).await.unwrap().ttl;
            assert!((3500..=3661).contains(&left), "{path}: {left}");
        }
    }
    let store = restored.try_open(Some(at_rest)).await.unwrap();
    check(&store, &model);
    for kind in KINDS {
        let old = store.watch(resource(kind), revision);
        assert!(matches!(old, Err(StoreError::Compacted { .. })), "{kind}: clients of the old cluster list again");
    }
    let made = Write::create(key("configmaps", "next"), body(&config_map("next", "1")), meta());
    assert!(store.commit(made).await.unwrap().revision > revision + SKIPPED);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_objects_are_moved() {
    const OBJECTS: usize = 20_000;
    let dir = TempDir::new().unwrap();
    let store = open(dir.path(), None);
    let create = |n: usize| {
        let (name, store) = (format!("m{n}"), store.clone());
        let write = Write::create(key("configmaps", &name), body(&config_map(&name, &"x".repeat(n % 9000))), meta());
        tokio::spawn(async move { store.commit(write).await })
    };
    for first in (0..OBJECTS).step_by(500) {
        let writes: Vec<_> = (first..first + 500).map(create).collect();
        for write in writes {
            write.await.unwrap().unwrap();
        }
    }
    let revision = store.current_revision();
    store.close().await;
    let moved = into_etcd(options(dir.path(), None)).await.unwrap();
    assert_eq!((moved.revision, moved.objects), (revision, OBJECTS));
    let etcd = Etcd::on(&place::member_data(dir.path())).await;
    let store = etcd.open().await;
    assert_eq!((store.count(resource("configmaps")), store.current_revision()), (OBJECTS, revision));
    let long = store.get(resource("configmaps"), "default", "m8999").unwrap();
    assert!(long.bytes().len() > 8999);
}

#[tokio::test]
async fn what_cannot_be_moved_stays_as_it_is() {
    let dir = TempDir::new().unwrap();
    let absent = into_etcd(options(dir.path(), None)).await.unwrap_err();
    assert!(matches!(absent, MoveError::Absent(_)), "{absent}");
    let store = open(dir.path(), None);
    let bad = Body::locate(r#"{"metadata":{"name":"p","resourceVersion":""},"spec":{"containers":7}}"#).unwrap();
    let pod = Key::new(Resource::parse("pods"), "default", "p");
    store.commit(Write::create(pod, bad, meta())).await.unwrap();
    store.close().await;
    // The object is none of its kind.
    let failed = into_etcd(options(dir.path(), None)).await.unwrap_err();
    assert!(matches!(failed, MoveError::Store { .. }), "{failed}");
    let store = open(dir.path(), None);
    assert_eq!(store.count(resource("pods")), 1);
    store.close().await;
    std::fs::create_dir_all(place::member_data(dir.path()).join("member").join("wal")).unwrap();
    let both = into_etcd(options(dir.path(), None)).await.unwrap_err();
    assert!(matches!(both, MoveError::Both { .. }), "{both}");
    assert!(place::has_store(dir.path()));
}
