//! Power cuts under load. After a cut, the write-ahead log has the synced pages, and any part of later pages, complete
//! or torn. The cut is made in a copy of the files while clients continue, and the copy is opened as on a restarted
//! machine. It must contain all changes up to some write, and that write must not be before the last acknowledged one:
//! the copy and the answers form one history. `KELSON_CUTS` is the number of cuts; `make torture` makes a thousand.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::history::load::{Client, Lines, look, resource, watch};
use crate::history::{Answer, Checked, History, Line, Registers};
use kelson_store::engine::{Engine, Op, SqliteEngine};
use kelson_store::{Body, Key, RecordMeta, Resource, Store, StoreError, StoreOptions, Write};
use rand::{Rng, SeedableRng, rngs::StdRng};

const CUTS: u64 = 60;
/// The number of cuts in one store, before its log is checkpointed.
const CUTS_PER_STORE: u64 = 5;
const CLIENTS: u64 = 5;
/// The bytes of a page in the log with its header.
const FRAME_BYTES: u64 = 4096 + 24;

#[derive(Default)]
struct Load {
    lines: Lines,
    /// The highest revision of any acknowledged write, including relaxed ones.
    revision: AtomicU64,
    next: AtomicU64,
    /// Operations up to this number may begin. Between two cuts only some do, so that the log is never checkpointed.
    allowed: AtomicU64,
    ended: AtomicBool,
}

impl Load {
    fn say(&self) -> impl Fn(Line) + Send + 'static {
        let lines = Arc::clone(&self.lines);
        move |line| lines.lock().push(line)
    }

    /// The number of the next operation, or `None` at the end.
    async fn turn(&self) -> Option<u64> {
        while !self.ended.load(Ordering::SeqCst) {
            if self.next.load(Ordering::SeqCst) < self.allowed.load(Ordering::SeqCst) {
                return Some(self.next.fetch_add(1, Ordering::SeqCst));
            }
            tokio::task::yield_now().await;
        }
        None
    }
}

/// Performs relaxed writes, which may be lost, but whose revisions must never be assigned again.
async fn relaxed(store: Store, load: Arc<Load>) {
    while let Some(id) = load.turn().await {
        let name = format!("l{id}");
        let body = Body::locate(format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":""}}}}"#)).unwrap();
        let write = Write::create(Key::new(Resource::parse("leases"), "", &name), body, RecordMeta::with_uid("u"));
        let done = store.commit(write.relaxed()).await.unwrap();
        load.revision.fetch_max(done.revision, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
}

/// Copies the files and cuts the log at some point after the part that was synced when the history was read.
fn cut(from: &Path, to: &Path, synced: u64, dice: &mut StdRng) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::copy(from.join("store.db"), to.join("store.db")).unwrap();
    let log = to.join("store.db-wal");
    let len = std::fs::copy(from.join("store.db-wal"), &log).unwrap();
    let at = dice.random_range(synced.min(len)..=len);
    let mut file = std::fs::OpenOptions::new().write(true).open(&log).unwrap();
    match dice.random_range(0..4) {
        // The file system had not extended the file yet.
        0 => file.set_len(at).unwrap(),
        // The file was extended, but its blocks were never written.
        1 => {
            file.set_len(at).unwrap();
            file.set_len(len).unwrap();
        }
        // The blocks have the content of another file.
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

/// The recorded position of the log as a restarted machine finds it.
fn noted_before(note: &str) -> String {
    let (text, _) = note.trim_end().rsplit_once(' ').unwrap();
    let words: Vec<&str> = text.split(' ').collect();
    let text = [&[words[0], "another-boot"][..], &words[2..]].concat().join(" ");
    let line = format!("{text} {:08x}", crc32fast::hash(text.as_bytes()));
    format!("{line:<width$}\n", width = note.len() - 1)
}

/// Changes the boot identifier in the files, as if the machine had been restarted.
fn other_boot(dir: &Path) {
    let value = b"\x05other";
    let sum = crc32fast::hash(&[&b"running"[..], value].concat()).to_le_bytes();
    let value = [&[0], &sum[..], value].concat();
    SqliteEngine::open(dir).unwrap().append(&[Op::Mark { name: "running".into(), value }], true).unwrap();
}

/// The history if the copy has everything up to the revision `held`. Answers from before the log was read count as answers. Later
/// writes happened if the copy has them, and writes without an answer may have happened.
fn as_held(answered: &[Line], all: &[Line], held: u64) -> Vec<Line> {
    let mut left_out = BTreeSet::new();
    let mut later = Vec::new();
    for line in &all[answered.len()..] {
        match line {
            Line::Answer { answer: Answer::Written(at), .. } if *at <= held => later.push(line.clone()),
            // The answer of a write that did not happen, or that the copy does not have, reached no client.
            Line::Answer { id, .. } => drop(left_out.insert(*id)),
            Line::Call { .. } => later.push(line.clone()),
            Line::Watch { .. } | Line::Event { .. } => {}
        }
    }
    let of = |line: &Line| matches!(line, Line::Call { id, .. } if left_out.contains(id));
    answered.iter().chain(&later).filter(|line| !of(line)).cloned().collect()
}

/// Searches for the last write that the copy has.
fn check(after: &Registers, answered: &[Line], all: &[Line]) -> Result<Checked, String> {
    let written = |lines: &[Line]| -> BTreeSet<u64> {
        let at =
            |line: &Line| if let Line::Answer { answer: Answer::Written(at), .. } = line { Some(*at) } else { None };
        lines.iter().filter_map(at).collect()
    };
    let acknowledged = written(answered).last().copied().unwrap_or(0);
    let least = after.values().map(|v| v.0).max().unwrap_or(0).max(acknowledged);
    let later = written(all).split_off(&(least + 1));
    let mut why = String::new();
    for held in [least].into_iter().chain(later) {
        match History::new(as_held(answered, all, held)).check(&Registers::new(), after) {
            Ok(checked) => return Ok(checked),
            Err(fault) => why.push_str(&format!("\nif it ends at {held}: {fault}")),
        }
    }
    Err(format!("{acknowledged} was acknowledged{why}"))
}

/// Opens the copy, returns its content, and checks its next revision and its watches.
async fn open(dir: &Path, revision: u64) -> Registers {
    other_boot(dir);
    let store = Store::open_dir(dir, StoreOptions::default()).unwrap();
    let (opened, after) = (store.current_revision(), look(&store));
    assert!(opened >= revision, "revisions went back");
    let body = Body::locate(r#"{"metadata":{"name":"next","resourceVersion":""}}"#.to_owned()).unwrap();
    let next = Write::create(Key::new(resource(), "default", "next"), body, RecordMeta::with_uid("u"));
    let next = store.commit(next).await.unwrap();
    assert!(next.revision > revision, "revision {} was given out before", next.revision);
    // Before the first acknowledged write there is no revision that a watcher could have seen.
    for from in [1, revision.saturating_sub(3), revision].into_iter().filter(|from| *from < opened) {
        let watch = store.watch(resource(), from);
        assert!(matches!(watch, Err(StoreError::Compacted { .. })), "a watcher would go on from {from} over a gap");
    }
    store.close().await;
    after
}

/// Makes a number of cuts in one store under load.
async fn cuts_of_a_store(cuts: u64, dice: &mut StdRng) -> Checked {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("store");
    let store = Store::open_dir(&dir, StoreOptions::default()).unwrap();
    let load = Arc::new(Load::default());
    let mut tasks = vec![tokio::spawn(relaxed(store.clone(), Arc::clone(&load)))];
    for _ in 0..CLIENTS {
        let mut client = Client::new(store.clone(), load.say(), StdRng::seed_from_u64(dice.random()));
        let load = Arc::clone(&load);
        tasks.push(tokio::spawn(async move {
            while let Some(id) = load.turn().await {
                client.operate(id).await;
                load.revision.fetch_max(client.written, Ordering::SeqCst);
            }
        }));
    }
    let (watched, say) = (store.clone(), load.say());
    let watching = tokio::spawn(async move { watch(&watched, 1, 0, say).await });
    let mut all = Checked::default();
    for n in 0..cuts {
        // A fixed number of further operations, independent of the machine's speed.
        let begun = load.allowed.fetch_add(60, Ordering::SeqCst);
        let wanted = begun + dice.random_range(1..40);
        while load.next.load(Ordering::SeqCst) < wanted {
            tokio::task::yield_now().await;
        }
        // The part of the log up to the last acknowledged synced write is on the disk by now.
        let revision = load.revision.load(Ordering::SeqCst);
        let answered = load.lines.lock().clone();
        let noted = noted_before(&std::fs::read_to_string(dir.join("store.db-position")).unwrap());
        let synced = std::fs::metadata(dir.join("store.db-wal")).unwrap().len();
        let to = root.path().join(format!("cut{n}"));
        cut(&dir, &to, synced, dice);
        std::fs::write(to.join("store.db-position"), noted).unwrap();
        let lines = load.lines.lock().clone();
        let after = open(&to, revision).await;
        all += check(&after, &answered, &lines).unwrap_or_else(|fault| panic!("cut {n}: {fault}"));
        std::fs::remove_dir_all(&to).unwrap();
    }
    load.ended.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    let after = look(&store);
    store.close().await;
    watching.await.unwrap();
    let history = History::new(load.lines.lock().clone());
    history.check(&Registers::new(), &after).unwrap_or_else(|fault| panic!("the store that went on: {fault}"));
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_power_cuts() {
    let cuts: u64 = std::env::var("KELSON_CUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(CUTS);
    let seed = std::env::var("KELSON_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or_else(|| rand::rng().random());
    println!("KELSON_SEED={seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    let (mut left, mut all) = (cuts, Checked::default());
    while left > 0 {
        let now = left.min(CUTS_PER_STORE);
        all += cuts_of_a_store(now, &mut dice).await;
        left -= now;
    }
    println!("{cuts} cuts: {all:?}");
    assert!(all.operations > 10 * cuts as usize && all.events > 0, "{all:?}");
}

/// A cut while the log is carried over into the table: any of the table's pages are old, new or torn, and the log is whole.
#[tokio::test]
async fn a_power_cut_while_the_log_is_carried_over_loses_nothing() {
    /// The number of bytes that a disk writes atomically.
    const SECTOR_BYTES: usize = 512;
    const PAGE_BYTES: usize = 4096;
    let seed = std::env::var("KELSON_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or_else(|| rand::rng().random());
    println!("KELSON_SEED={seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let put = |n: u64| {
        let json = format!(r#"{{"metadata":{{"name":"s{n}","resourceVersion":""}},"value":"{}"}}"#, "x".repeat(3000));
        let key = Key::new(resource(), "default", &format!("s{n}"));
        Write::put(key, kelson_store::Precondition::Any, Body::locate(json).unwrap(), RecordMeta::with_uid("u"))
    };
    // Some is in the table already; the log has updates, deletions and new records.
    let store = Store::open_dir(&at("store"), StoreOptions::default()).unwrap();
    for n in 0..100 {
        store.commit(put(n)).await.unwrap();
    }
    store.close().await;
    let store = Store::open_dir(&at("store"), StoreOptions::default()).unwrap();
    for n in 50..150 {
        store.commit(put(n)).await.unwrap();
    }
    for n in 0..20 {
        let gone = Key::new(resource(), "default", &format!("s{n}"));
        store.commit(Write::delete(gone, kelson_store::Precondition::Exists)).await.unwrap();
    }
    let (wanted, revision) = (look(&store), store.current_revision());
    let copy = |name: &str| {
        std::fs::create_dir(at(name)).unwrap();
        for file in ["store.db", "store.db-wal", "store.db-position"] {
            std::fs::copy(at("store").join(file), at(name).join(file)).unwrap();
        }
    };
    copy("carried");
    SqliteEngine::open(&at("carried")).unwrap().close().unwrap();
    let table = |name: &str| std::fs::read(at(name).join("store.db")).unwrap();
    let (old, new) = (table("store"), table("carried"));
    assert_ne!(old, new, "there was something to carry over");
    for n in 0..40 {
        let name = format!("cut{n}");
        copy(&name);
        let torn = |from: usize, dice: &mut StdRng| {
            let mut page = Vec::with_capacity(PAGE_BYTES);
            for sector in (from..from + PAGE_BYTES).step_by(SECTOR_BYTES) {
                let of = if dice.random() { &new } else { &old };
                let nothing = [0; SECTOR_BYTES];
                page.extend_from_slice(of.get(sector..sector + SECTOR_BYTES).unwrap_or(&nothing));
            }
            page
        };
        let pages = old.len().max(new.len()) / PAGE_BYTES;
        let mixed: Vec<u8> = (0..pages).flat_map(|page| torn(page * PAGE_BYTES, &mut dice)).collect();
        let len = *[old.len(), mixed.len()].get(n % 2).unwrap();
        std::fs::write(at(&name).join("store.db"), &mixed[..len]).unwrap();
        let note = std::fs::read_to_string(at(&name).join("store.db-position")).unwrap();
        std::fs::write(at(&name).join("store.db-position"), noted_before(&note)).unwrap();
        assert_eq!(open(&at(&name), revision).await, wanted, "cut {n}");
        std::fs::remove_dir_all(at(&name)).unwrap();
    }
    store.close().await;
}
