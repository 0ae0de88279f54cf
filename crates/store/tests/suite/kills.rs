//! Repeated `kill -9` under load. The killed process is this test binary, started as a child: its clients work on a few registers and
//! print their calls and answers. The printed lines and the content of the reopened store are checked together as one history.
//! `KELSON_KILLS` is the number of kills; `make torture` kills a thousand times.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::history::load::{Client, look, watch};
use crate::history::{Answer, Checked, History, Line, Registers};
use kelson_store::{Body, Key, RecordMeta, Resource, Store, StoreOptions, Write};
use rand::{Rng, SeedableRng, rngs::StdRng};

const CHILD: &str = "KELSON_STORE_TEST_CHILD";
/// The number of the child's first operation, and the revision from which its watcher starts.
const FIRST: &str = "KELSON_STORE_TEST_FIRST";
const FROM: &str = "KELSON_STORE_TEST_FROM";
const KILLS: u64 = 20;
const CLIENTS: u64 = 6;
/// The most operations of one child. The numbers of the next child begin after them.
const OPERATIONS: u64 = 1_000_000;

fn number(name: &str) -> u64 {
    std::env::var(name).unwrap().parse().unwrap()
}

/// Prints a line in one write, which a pipe takes completely or not at all.
fn say(line: Line) {
    let text = format!("\n#{} .\n", line.text());
    std::io::stdout().write_all(text.as_bytes()).unwrap();
}

/// The program of the killed process, not a test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_works_until_it_is_killed() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    let (first, from) = (number(FIRST), number(FROM));
    let store = Store::open_dir(Path::new(&dir), StoreOptions::default()).unwrap();
    for (watcher, from) in [(1, store.current_revision()), (2, from)] {
        let store = store.clone();
        tokio::spawn(async move { watch(&store, watcher, from, say).await });
    }
    let next = Arc::new(AtomicU64::new(first));
    let clients = (0..CLIENTS).map(|n| {
        let mut client = Client::new(store.clone(), say, StdRng::seed_from_u64(first + n));
        let next = Arc::clone(&next);
        tokio::spawn(async move {
            loop {
                client.operate(next.fetch_add(1, Ordering::Relaxed)).await;
                tokio::task::yield_now().await;
            }
        })
    });
    // Leases and Events are answered before the sync. A kill loses none of them either.
    let relaxed = store.clone();
    tokio::spawn(async move {
        for n in 0.. {
            let name = format!("r{first}-{n}");
            let json = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":""}}}}"#);
            let body = Body::locate(json).unwrap();
            let write = Write::create(Key::new(Resource::parse("leases"), "", &name), body, RecordMeta::with_uid("u"));
            relaxed.commit(write.relaxed()).await.unwrap();
            std::io::stdout().write_all(format!("\n!{name} .\n").as_bytes()).unwrap();
            tokio::task::yield_now().await;
        }
    });
    let ended = clients.collect::<Vec<_>>().into_iter().next().unwrap().await;
    panic!("a client gave up: {ended:?}");
}

/// The output of a child: its history, and the relaxed writes that were acknowledged.
#[derive(Default)]
struct Said {
    lines: Vec<Line>,
    relaxed: Vec<String>,
}

/// Starts the child and kills it after a number of lines.
fn run_and_kill(dir: &Path, first: u64, from: u64, after: usize) -> Said {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::child_that_works_until_it_is_killed", "--nocapture"])
        .env(CHILD, dir)
        .env(FIRST, first.to_string())
        .env(FROM, from.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = Said::default();
    let mut killed = false;
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        let Some(text) = line.strip_suffix(" .") else { continue };
        if let Some(name) = text.strip_prefix('!') {
            said.relaxed.push(name.to_owned());
        } else if let Some(text) = text.strip_prefix('#') {
            said.lines.push(Line::parse(text).unwrap_or_else(|| panic!("{text}")));
        }
        if !killed && said.lines.len() + said.relaxed.len() >= after {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    assert!(killed, "the child ended by itself");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_kill_nine() {
    if std::env::var(CHILD).is_ok() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let kills: u64 = std::env::var("KELSON_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(KILLS);
    let mut dice = StdRng::seed_from_u64(20);
    let mut all = Checked::default();
    let mut watched_on = 0;
    let (mut before, mut highest) = (Registers::new(), 0);
    for kill in 0..kills {
        // Every hundred kills a new store begins, so that the opened store stays as small as the checked history.
        let dir = root.path().join(format!("s{}", kill / 100));
        if kill % 100 == 0 {
            (before, highest) = (Registers::new(), 0);
        }
        // A watcher that has seen the last write may continue. An earlier one may only if it gets what it missed.
        let from = highest - u64::from(highest > 0 && kill % 2 == 1);
        let said = run_and_kill(&dir, (kill + 1) * OPERATIONS, from, dice.random_range(20..600));
        let store = Store::open_dir(&dir, StoreOptions::default()).unwrap();
        let after = look(&store);
        let seen = said.lines.iter().filter_map(|line| match line {
            Line::Answer { answer: Answer::Written(at), .. } | Line::Event { revision: at, .. } => Some(*at),
            _ => None,
        });
        let (least, most) = seen.fold((u64::MAX, highest), |(least, most), at| (least.min(at), most.max(at)));
        assert!(least > highest, "kill {kill}: {least} was given out before, {highest} was");
        let resumed = said.lines.iter().any(|line| matches!(line, Line::Watch { watcher: 2, .. }));
        assert!(!resumed || from >= highest, "kill {kill}: a watcher went on from {from} over {highest}");
        watched_on += u64::from(resumed);
        let history = History::new(said.lines);
        all += history.check(&before, &after).unwrap_or_else(|fault| panic!("kill {kill}: {fault}"));
        for name in &said.relaxed {
            let found = store.get(Resource::parse("leases"), "", name);
            assert!(found.is_some(), "kill {kill}: {name} was acknowledged and is gone");
        }
        assert!(store.current_revision() >= most, "kill {kill}: revisions went back");
        highest = after.values().map(|v| v.0).max().unwrap_or(0).max(most);
        before = after;
        store.close().await;
    }
    println!("{kills} kills: {all:?}, {watched_on} watches went on");
    assert!(all.operations > 50 * kills as usize / 4 && all.events > 0, "{all:?}");
}
