//! Compares the store with a simple model under seeded random writes, failures of the engine, and restarts: preconditions, revisions,
//! lists of current and earlier states, and that a watcher sees each change exactly once and in order.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use kelson_store::engine::{Engine, EngineError, Entry, Op, Sink};
use kelson_store::{
    Body, Committed, Cursor, EventKind, Key, Labels, Precondition, RecordMeta, Resource, Store, StoreError,
    StoreOptions, Uid, Write,
};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};

#[derive(Default)]
struct Disk {
    rows: BTreeMap<u64, Vec<u8>>,
    marks: BTreeMap<String, Vec<u8>>,
    failing: bool,
}

/// An engine on a map that outlives it. Tests can make it fail.
struct DiskEngine(Arc<Mutex<Disk>>);

impl Engine for DiskEngine {
    fn load(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        let disk = self.0.lock();
        disk.marks.iter().try_for_each(|(name, value)| sink(Entry::Mark { name, value }))?;
        disk.rows.iter().try_for_each(|(id, value)| sink(Entry::Record { id: *id, value }))
    }
    fn append(&mut self, batch: &[Op], _: bool) -> Result<(), EngineError> {
        let mut disk = self.0.lock();
        if disk.failing {
            let source = std::io::ErrorKind::StorageFull.into();
            return Err(EngineError::Io { context: "write", source });
        }
        for op in batch {
            match op {
                Op::Put { id, head, body } => drop(disk.rows.insert(*id, [head.as_slice(), body].concat())),
                Op::Remove { id } => assert!(disk.rows.remove(id).is_some(), "removed row {id}, which was not there"),
                Op::Mark { name, value } => drop(disk.marks.insert(name.clone(), value.clone())),
            }
        }
        Ok(())
    }
    fn sync(&mut self) -> Result<(), EngineError> {
        Ok(())
    }
    fn blocks(&self) -> bool {
        false
    }
}

type Name = (Resource, String, String);
/// The revision, the creation revision, the JSON and the UID.
type State = (u64, u64, String, String);

struct Change {
    revision: u64,
    kind: EventKind,
    name: Name,
    json: String,
    had: Option<String>,
}

struct Watcher {
    cursor: Cursor,
    watched: Resource,
    at: u64,
}

struct World {
    random: StdRng,
    disk: Arc<Mutex<Disk>>,
    store: Store,
    log_bytes_max: usize,
    now: BTreeMap<Name, State>,
    history: Vec<Change>,
    watchers: Vec<Watcher>,
    expired: usize,
    resumed: usize,
    last: u64,
}

fn json(name: &Name, uid: &str, payload: u32, revision: &str) -> String {
    // The JSON is long enough for delta encoding, and there are a few shapes of it.
    let field = |i: u32| format!(r#""{}-field-{i}":"value {}","#, payload % 3, i * i);
    let fields: String = (0..payload % 5 * 20).map(field).collect();
    format!(
        r#"{{"metadata":{{"name":"{}","namespace":"{}","resourceVersion":"{revision}","uid":"{uid}"}},{fields}"payload":{payload}}}"#,
        name.2, name.1
    )
}

impl World {
    fn new(seed: u64, log_bytes_max: usize) -> Self {
        let disk = Arc::new(Mutex::new(Disk::default()));
        let store = open(&disk, log_bytes_max);
        Self {
            random: StdRng::seed_from_u64(seed),
            last: store.current_revision(),
            disk,
            store,
            log_bytes_max,
            now: BTreeMap::new(),
            history: Vec::new(),
            watchers: Vec::new(),
            expired: 0,
            resumed: 0,
        }
    }

    fn name(&mut self) -> Name {
        let resource = ["pods", "apps/deployments", "events"][self.random.random_range(0..3)];
        let namespace = ["a", "a-b", "b"][self.random.random_range(0..3)];
        (Resource::parse(resource), namespace.into(), format!("o{}", self.random.random_range(0..12)))
    }

    async fn write(&mut self) {
        let name = self.name();
        let current = self.now.get(&name).cloned();
        let key = Key::new(name.0, &name.1, &name.2);
        let precondition = match self.random.random_range(0..6) {
            0 => Precondition::Any,
            1 | 2 => Precondition::Absent,
            3 => Precondition::Exists,
            4 => Precondition::AtRevision(self.last.saturating_sub(self.random.random_range(0..3))),
            _ => Precondition::AtRevision(current.as_ref().map_or(7, |state| state.0)),
        };
        let deletes = self.random.random_bool(0.3);
        let uid = match (&current, precondition) {
            (Some(state), Precondition::Exists | Precondition::AtRevision(_)) if !deletes => state.3.clone(),
            _ => format!("uid-{}", self.random.random::<u32>()),
        };
        let payload = self.random.random();
        let mut write = if deletes {
            Write::delete(key, precondition)
        } else {
            let meta = RecordMeta { uid: Uid::new(&uid), labels: Labels::new([("a", "b")]), ..RecordMeta::default() };
            Write::put(key, precondition, Body::locate(json(&name, &uid, payload, "")).unwrap(), meta)
        };
        let wanted = self.random.random_bool(0.2).then(|| match &current {
            Some(state) if self.random.random_bool(0.7) => state.3.clone(),
            _ => "uid-x".to_owned(),
        });
        if let Some(wanted) = &wanted {
            write = write.with_uid(Uid::new(wanted));
        }
        if self.random.random_bool(0.3) {
            write = write.relaxed();
        }
        let failing = self.random.random_bool(0.05);
        self.disk.lock().failing = failing;
        let answer = self.store.commit(write).await;
        self.disk.lock().failing = false;

        let expected = expect(precondition, current.as_ref(), deletes, wanted.as_deref());
        match (expected, answer) {
            (None, Ok(done)) if !failing => self.happened(name, current, deletes, &uid, payload, &done),
            (None, Err(StoreError::Engine(_))) if failing => {}
            (Some("exists"), Err(StoreError::AlreadyExists { .. }))
            | (Some("missing"), Err(StoreError::NotFound))
            | (Some("uid"), Err(StoreError::UidMismatch { .. }))
            | (Some("conflict"), Err(StoreError::Conflict { .. })) => {}
            (expected, answer) => panic!("expected {expected:?} (failing: {failing}), got {answer:?}"),
        }
    }

    fn happened(&mut self, name: Name, old: Option<State>, deletes: bool, uid: &str, payload: u32, done: &Committed) {
        assert!(done.revision > self.last, "revisions only grow");
        self.last = done.revision;
        let revision = done.revision.to_string();
        let had = old.as_ref().map(|state| state.2.clone());
        let (kind, text) = if deletes {
            self.now.remove(&name);
            let state = old.unwrap();
            (
                EventKind::Deleted,
                state.2.replace(&format!(r#"Version":"{}""#, state.0), &format!(r#"Version":"{revision}""#)),
            )
        } else {
            let text = json(&name, uid, payload, &revision);
            let created = old.as_ref().map_or(done.revision, |state| state.1);
            self.now.insert(name.clone(), (done.revision, created, text.clone(), uid.to_owned()));
            (if old.is_some() { EventKind::Modified } else { EventKind::Added }, text)
        };
        assert_eq!(done.record.bytes(), text.as_bytes());
        self.history.push(Change { revision: done.revision, kind, name, json: text, had });
    }

    /// The model's records of one resource at a revision, in storage order.
    fn past(&self, revision: u64, resource: Resource) -> Vec<String> {
        let mut state = BTreeMap::new();
        for change in self.history.iter().filter(|c| c.revision <= revision && c.name.0 == resource) {
            let place = format!("{}/{}", change.name.1, change.name.2);
            match change.kind {
                EventKind::Deleted => drop(state.remove(&place)),
                _ => drop(state.insert(place, change.json.clone())),
            }
        }
        state.into_values().collect()
    }

    fn check_reads(&mut self) {
        let name = self.name();
        let found = self.store.get(name.0, &name.1, &name.2);
        assert_eq!(found.as_ref().map(|r| r.bytes()), self.now.get(&name).map(|s| s.2.clone().into()));
        assert_eq!(found.map(|r| (r.revision(), r.create_revision())), self.now.get(&name).map(|s| (s.0, s.1)));
        let revision = self.random.random_range(self.last.saturating_sub(60)..=self.last);
        match self.store.list_at(revision, name.0, None, None, None) {
            Ok(view) => {
                let ours: Vec<_> = view.iter().map(|r| String::from_utf8(r.bytes().to_vec()).unwrap()).collect();
                assert_eq!(ours, self.past(revision, name.0), "list at {revision}");
            }
            Err(StoreError::Compacted { oldest, .. }) => assert!(oldest > revision),
            Err(error) => panic!("{error}"),
        }
        let view = self.store.list(name.0, Some(&name.1), Some((&name.1, &name.2)), Some(3));
        let after = |n: &&Name| n.0 == name.0 && n.1 == name.1 && n.2 > name.2;
        let expected: Vec<_> = self.now.keys().filter(after).map(|n| n.2.clone()).collect();
        assert_eq!(
            view.iter().map(|r| r.key().name.to_string()).collect::<Vec<_>>(),
            expected[..expected.len().min(3)]
        );
        assert_eq!((view.revision(), view.remaining()), (self.last, expected.len().saturating_sub(3)));
    }

    fn watch(&mut self) {
        let from = self.random.random_range(self.last.saturating_sub(40)..=self.last);
        let watched = self.name().0;
        match self.store.watch(watched, from) {
            Ok(cursor) => self.watchers.push(Watcher { cursor, watched, at: from }),
            Err(StoreError::Compacted { requested, oldest }) => assert!(requested == from && oldest > from),
            Err(error) => panic!("{error}"),
        }
    }

    /// Lets a watcher read. It must see the next changes of the history, all of them and nothing else.
    fn read(&mut self, which: usize) {
        let Watcher { cursor, watched, at } = &mut self.watchers[which];
        let events = match cursor.try_next() {
            Ok(events) => events,
            Err(StoreError::Compacted { .. }) => {
                self.expired += 1;
                self.watchers.swap_remove(which);
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let sees = |change: &&Change| change.name.0 == *watched;
        let since = *at;
        let mut expected = self.history.iter().filter(move |change| change.revision > since).filter(sees);
        for event in &events {
            let change = expected.next().expect("an event that did not happen");
            assert_eq!((event.revision, event.kind), (change.revision, change.kind));
            assert_eq!(event.record.bytes(), change.json.as_bytes());
            assert_eq!(event.previous.as_ref().map(|r| r.bytes()), change.had.clone().map(Into::into));
            *at = event.revision;
        }
        let pending = expected.next().is_some();
        assert_eq!(cursor.progress(), (!pending).then_some(self.last), "a bookmark only when all was read");
    }

    async fn restart(&mut self) {
        if self.random.random_bool(0.5) {
            self.store.close().await;
            assert!(matches!(
                self.store.commit(Write::delete(Key::new(Resource::parse("pods"), "a", "o1"), Precondition::Any)).await,
                Err(StoreError::Closed)
            ));
        }
        let other_boot = self.random.random_bool(0.3);
        if other_boot {
            let mut disk = self.disk.lock();
            let running = disk.marks.get_mut("running").unwrap();
            // The value is preceded by a checksum over name and value.
            if running.len() > 6 {
                let sum = crc32fast::hash(b"running\x05other").to_le_bytes();
                *running = [&[0], &sum[..], b"\x05other"].concat();
            }
        }
        self.store = open(&self.disk, self.log_bytes_max);
        assert!(self.store.current_revision() >= self.history.last().map_or(0, |change| change.revision));
        self.last = self.store.current_revision();
        for watcher in std::mem::take(&mut self.watchers) {
            // A watcher that returns continues without a gap, or gets an error and lists again.
            if let Ok(cursor) = self.store.watch(watcher.watched, watcher.at) {
                self.resumed += 1;
                self.watchers.push(Watcher { cursor, ..watcher });
            }
        }
    }

    async fn run(mut self, steps: usize) -> (usize, usize) {
        for _ in 0..steps {
            match self.random.random_range(0..100) {
                0..70 => self.write().await,
                70..80 => self.check_reads(),
                80..85 => self.watch(),
                85 => self.restart().await,
                _ if self.watchers.is_empty() => {}
                _ => {
                    let which = self.random.random_range(0..self.watchers.len());
                    self.read(which);
                }
            }
        }
        (self.expired, self.resumed)
    }
}

fn open(disk: &Arc<Mutex<Disk>>, log_bytes_max: usize) -> Store {
    let options = StoreOptions { log_bytes_max, ..StoreOptions::default() };
    Store::open(Box::new(DiskEngine(Arc::clone(disk))), options).unwrap()
}

fn expect(
    precondition: Precondition,
    current: Option<&State>,
    deletes: bool,
    uid: Option<&str>,
) -> Option<&'static str> {
    match (current, precondition) {
        (None, Precondition::Absent) if deletes => Some("missing"),
        (None, Precondition::Absent) => uid.is_some().then_some("missing"),
        (None, Precondition::Any) => (deletes || uid.is_some()).then_some("missing"),
        (None, _) => Some("missing"),
        (Some(_), Precondition::Absent) => Some("exists"),
        (Some(state), _) if uid.is_some_and(|uid| uid != state.3) => Some("uid"),
        (Some(state), Precondition::AtRevision(revision)) if revision != state.0 => Some("conflict"),
        _ => None,
    }
}

#[tokio::test]
async fn random_histories_match_the_model() {
    let seeds = match std::env::var("KELSON_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..40).collect::<Vec<u64>>(),
    };
    let (mut expired, mut resumed) = (0, 0);
    for seed in seeds {
        println!("KELSON_SEED={seed}");
        // First a log of about 25 events, then one that keeps everything.
        let log_bytes_max = if seed % 2 == 0 { 20_000 } else { 32 << 20 };
        let counts = World::new(seed, log_bytes_max).run(1500).await;
        (expired, resumed) = (expired + counts.0, resumed + counts.1);
    }
    assert!(expired > 0 && resumed > 0, "the histories must reach expiry ({expired}) and resumption ({resumed})");
}

#[tokio::test]
async fn many_changes_of_one_resource_keep_the_history_of_others() {
    let options = StoreOptions { log_bytes_max: 100_000, ..StoreOptions::default() };
    let store = Store::in_memory(options);
    let put = |resource: &str, name: &str, n: u32| {
        let resource = Resource::parse(resource);
        let name = (resource, "a".to_owned(), name.to_owned());
        let body = Body::locate(json(&name, "u", n, "")).unwrap();
        Write::put(Key::new(resource, "a", &name.2), Precondition::Any, body, RecordMeta::default())
    };
    let start = store.current_revision();
    for n in 0..20 {
        store.commit(put("apps/deployments", "web", n)).await.unwrap();
    }
    for n in 0..5_000 {
        store.commit(put("events", &format!("e{}", n % 50), n)).await.unwrap();
    }
    let deployments = store.watch(Resource::parse("apps/deployments"), start).unwrap().try_next().unwrap();
    assert_eq!(deployments.len(), 20);
    assert!(matches!(store.watch(Resource::parse("events"), start), Err(StoreError::Compacted { .. })));
}

#[tokio::test]
async fn a_waiting_cursor_wakes_only_for_its_resource() {
    let store = Store::in_memory(StoreOptions::default());
    let mut cursor = store.watch(Resource::parse("pods"), store.current_revision()).unwrap();
    let waiting = tokio::spawn(async move { (cursor.next().await.unwrap(), cursor) });
    for resource in ["events", "pods"] {
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        let name = (Resource::parse(resource), "a".to_owned(), "x".to_owned());
        let body = Body::locate(json(&name, "u", 1, "")).unwrap();
        store.commit(Write::create(Key::new(name.0, "a", "x"), body, RecordMeta::default())).await.unwrap();
    }
    let (events, mut cursor) = waiting.await.unwrap();
    assert_eq!(events.iter().map(|event| event.revision).collect::<Vec<_>>(), [store.current_revision()]);
    store.close().await;
    assert!(matches!(cursor.next().await, Err(StoreError::Closed)));
}

/// A clock that tests set, in seconds.
#[derive(Clone)]
struct Hands(Arc<Mutex<i64>>);
impl kelson_meta::Clock for Hands {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::from_second(*self.0.lock()).unwrap()
    }
}

#[tokio::test]
async fn expired_records_go_and_renewed_ones_stay() {
    let hands = Hands(Arc::new(Mutex::new(1000)));
    let options = StoreOptions { clock: Arc::new(hands.clone()), ..StoreOptions::default() };
    let store = Store::in_memory(options);
    let events = Resource::parse("events");
    let put = |name: &str, expires_at_s| {
        let body = Body::locate(json(&(events, "a".into(), name.into()), "u", 1, "")).unwrap();
        let meta = RecordMeta { expires_at_s, ..RecordMeta::default() };
        Write::put(Key::new(events, "a", name), Precondition::Any, body, meta)
    };
    for n in 0..600 {
        store.commit(put(&format!("e{n}"), 1500)).await.unwrap();
    }
    store.commit(put("e1", 3000)).await.unwrap();
    assert_eq!(store.expire_due().await.unwrap(), 0);
    *hands.0.lock() = 1500;
    assert_eq!(store.expire_due().await.unwrap(), 599);
    assert_eq!(
        store.list(events, None, None, None).iter().map(|r| r.key().name.to_string()).collect::<Vec<_>>(),
        ["e1"]
    );
}
