//! Power cuts under load: of the write-ahead log, what was synced is there, and of what followed any part, whole or torn. The cut is made
//! in a copy of the files while writers go on, and the copy is opened as by a machine that was started again.
//! `KELSON_CUTS` says how many; `make bench-disk` makes a thousand.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kelson_store::engine::{Engine, Op, SqliteEngine};
use kelson_store::{Body, Key, Precondition, RecordMeta, Resource, Store, StoreError, StoreOptions, Write};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};

const CUTS: u64 = 60;
/// Cuts in one store, before its log is carried over into its table.
const CUTS_PER_STORE: u64 = 5;
const WRITERS: u64 = 6;
/// A log's page with its head.
const FRAME_BYTES: u64 = 4096 + 24;

fn pods() -> Resource {
    Resource::parse("pods")
}

fn key(name: &str) -> Key {
    Key::new(pods(), "default", name)
}

fn body(name: &str, payload: &str) -> Body {
    Body::locate(format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":""}},"payload":"{payload}"}}"#)).unwrap()
}

/// What became of a name, as its writer was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// A synced create was acknowledged, at this revision.
    There(u64),
    /// A delete is under way: either is true.
    Going,
    /// The delete was acknowledged.
    Gone,
}

#[derive(Default)]
struct History {
    names: Mutex<BTreeMap<String, Fate>>,
    /// The highest revision of any acknowledged write, relaxed ones included.
    revision: AtomicU64,
    next: AtomicU64,
    /// Names up to this one may be written: between two cuts only some are, so that the log is never carried over.
    allowed: AtomicU64,
    ended: AtomicBool,
}

impl History {
    fn tell(&self, name: &str, told: Fate) {
        self.names.lock().insert(name.to_owned(), told);
    }
}

async fn write(store: Store, history: Arc<History>, writer: u64) {
    while !history.ended.load(Ordering::SeqCst) {
        if history.next.load(Ordering::SeqCst) >= history.allowed.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
            continue;
        }
        let name = format!("p{}", history.next.fetch_add(1, Ordering::SeqCst));
        let create = Write::create(key(&name), body(&name, "first"), RecordMeta::with_uid("u"));
        if writer == 0 {
            // Not promised to survive, but its revision must never be given out again.
            let done = store.commit(create.relaxed()).await.unwrap();
            history.revision.fetch_max(done.revision, Ordering::SeqCst);
            tokio::task::yield_now().await;
            continue;
        }
        let done = store.commit(create).await.unwrap();
        history.revision.fetch_max(done.revision, Ordering::SeqCst);
        history.tell(&name, Fate::There(done.revision));
        let again = Write::create(key(&name), body(&name, "refused"), RecordMeta::with_uid("u"));
        assert!(matches!(store.commit(again).await, Err(StoreError::AlreadyExists { .. })));
        if writer % 3 == 1 {
            history.tell(&name, Fate::Going);
            let gone = store.commit(Write::delete(key(&name), Precondition::Exists)).await.unwrap();
            history.revision.fetch_max(gone.revision, Ordering::SeqCst);
            history.tell(&name, Fate::Gone);
        }
    }
}

/// Copies the files as they are, and cuts the log somewhere behind what was synced when the history was read.
fn cut(from: &Path, to: &Path, synced: u64, dice: &mut StdRng) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::copy(from.join("store.db"), to.join("store.db")).unwrap();
    let log = to.join("store.db-wal");
    let len = std::fs::copy(from.join("store.db-wal"), &log).unwrap();
    let at = dice.random_range(synced.min(len)..=len);
    let mut file = std::fs::OpenOptions::new().write(true).open(&log).unwrap();
    match dice.random_range(0..4) {
        // The file system had not grown the file yet.
        0 => file.set_len(at).unwrap(),
        // It had, but the blocks were never written.
        1 => {
            file.set_len(at).unwrap();
            file.set_len(len).unwrap();
        }
        // They hold what another file had there.
        2 => {
            file.set_len(at).unwrap();
            file.seek(SeekFrom::Start(at)).unwrap();
            let garbage: Vec<u8> = (0..FRAME_BYTES * 2).map(|_| dice.random()).collect();
            file.write_all(&garbage).unwrap();
        }
        // A later page reached the disk and an earlier one did not.
        _ => {
            let hole = at.min(len.saturating_sub(FRAME_BYTES * 2)).max(synced.min(len));
            file.seek(SeekFrom::Start(hole)).unwrap();
            file.write_all(&vec![0; usize::try_from((len - hole).min(FRAME_BYTES)).unwrap()]).unwrap();
        }
    }
}

/// The machine was started again: what is written in the files about the boot is another's.
fn other_boot(dir: &Path) {
    let value = b"\x05other";
    let sum = crc32fast::hash(&[&b"running"[..], value].concat()).to_le_bytes();
    let value = [&[0], &sum[..], value].concat();
    SqliteEngine::open(dir).unwrap().append(&[Op::Mark { name: "running".into(), value }], true).unwrap();
}

async fn check(dir: &Path, before: &BTreeMap<String, Fate>, revision: u64, after: &BTreeMap<String, Fate>) {
    other_boot(dir);
    let store = Store::open_dir(dir, StoreOptions::default()).unwrap();
    let opened = store.current_revision();
    for (name, told) in before {
        let found = store.get(pods(), "default", name);
        // What was told while the files were copied is open.
        let still = after.get(name) == Some(told);
        match told {
            Fate::There(at) if still => {
                let found = found.unwrap_or_else(|| panic!("{name} at {at} was acknowledged and is lost"));
                assert_eq!(found.revision(), *at, "{name}");
            }
            Fate::Gone => assert!(found.is_none(), "{name} was deleted and is there again"),
            Fate::There(_) | Fate::Going => {}
        }
    }
    for record in store.list(pods(), None, None, None).iter() {
        assert!(!record.bytes().windows(7).any(|w| w == b"refused"), "{} was refused and is there", record.key());
    }
    assert!(opened >= revision, "revisions went back");
    let next = store.commit(Write::create(key("next"), body("next", ""), RecordMeta::with_uid("u"))).await.unwrap();
    assert!(next.revision > revision, "revision {} was given out before", next.revision);
    // Of a store in which nothing was acknowledged nobody has seen anything.
    for from in [1, revision.saturating_sub(3), revision].into_iter().filter(|from| *from < opened) {
        let watch = store.watch(pods(), from);
        assert!(matches!(watch, Err(StoreError::Compacted { .. })), "a watcher would go on from {from} over a gap");
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_power_cuts() {
    let cuts: u64 = std::env::var("KELSON_CUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(CUTS);
    let seed = std::env::var("KELSON_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or_else(|| rand::rng().random());
    println!("KELSON_SEED={seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    let mut left = cuts;
    while left > 0 {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("store");
        let store = Store::open_dir(&dir, StoreOptions::default()).unwrap();
        let history = Arc::new(History::default());
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| tokio::spawn(write(store.clone(), Arc::clone(&history), writer))).collect();
        for n in 0..left.min(CUTS_PER_STORE) {
            // Some more writes, however fast the machine is.
            let begun = history.allowed.fetch_add(40, Ordering::SeqCst);
            let wanted = begun + dice.random_range(1..25);
            while history.next.load(Ordering::SeqCst) < wanted {
                tokio::task::yield_now().await;
            }
            // What is in the log by now was synced, as far as anything of it was acknowledged before.
            let revision = history.revision.load(Ordering::SeqCst);
            let before = history.names.lock().clone();
            let synced = std::fs::metadata(dir.join("store.db-wal")).unwrap().len();
            let to = root.path().join(format!("cut{n}"));
            cut(&dir, &to, synced, &mut dice);
            let after = history.names.lock().clone();
            check(&to, &before, revision, &after).await;
            std::fs::remove_dir_all(&to).unwrap();
        }
        left -= left.min(CUTS_PER_STORE);
        history.ended.store(true, Ordering::SeqCst);
        for writer in writers {
            writer.await.unwrap();
        }
        store.close().await;
    }
}
