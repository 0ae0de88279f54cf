//! Measures the store: commits per second with 1 and 32 writers, startup, lists, memory per record, bytes written.
//! `store DIR` (a directory on the disk to measure; it is emptied).
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on panics")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kelson_store::{
    Body, FieldNames, Fields, Key, Labels, Precondition, RecordMeta, Resource, Store, StoreOptions, Write,
};

use crate::block_on;

fn pod(n: u64, bytes: usize, names: &FieldNames) -> Write {
    let (name, uid) = (format!("web-7d4b9c6f5d-{n:06}"), format!("8f2c1f0e-6c1e-4b8a-9d8e-{n:012x}"));
    let head = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","namespace":"ns-{}","resourceVersion":"","uid":"{uid}"}},"spec":{{"filler":""#,
        n % 20
    );
    let filler = bytes.saturating_sub(head.len() + 3);
    let json = format!("{head}{}\"}}}}", "abcdefgh".repeat(filler / 8 + 1).get(..filler).unwrap());
    let values = [
        format!("node-{}", n % 100),
        "Always".into(),
        "default-scheduler".into(),
        "default".into(),
        "false".into(),
        "Running".into(),
        format!("10.42.{}.{}", n / 250, n % 250),
        String::new(),
    ];
    let meta = RecordMeta {
        labels: Labels::new([("app", "web"), ("pod-template-hash", "7d4b9c6f5d")]),
        fields: Fields::new(names, values.iter().map(String::as_str)),
        ..RecordMeta::with_uid(&uid)
    };
    let key = Key::new(Resource::parse("pods"), &format!("ns-{}", n % 20), &name);
    Write::put(key, Precondition::Any, Body::locate(json).unwrap(), meta)
}

fn names() -> FieldNames {
    FieldNames::new([
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ])
}

fn proc_number(file: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn written() -> u64 {
    proc_number("/proc/self/io", "write_bytes:")
}

fn resident() -> u64 {
    proc_number("/proc/self/status", "VmRSS:") * 1024
}

/// Lets `writers` tasks write distinct keys for some time and prints rate, latency and bytes written to the disk.
async fn commits(what: &str, store: &Store, writers: u64, bytes: usize, for_: Duration, relaxed: bool) {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 20);
    let (before, start) = (written(), Instant::now());
    let tasks: Vec<_> = (0..writers)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let (names, mut latencies) = (names(), Vec::new());
                while start.elapsed() < for_ {
                    let write = pod(NEXT.fetch_add(1, Ordering::Relaxed), bytes, &names);
                    let begun = Instant::now();
                    store.commit(if relaxed { write.relaxed() } else { write }).await.unwrap();
                    latencies.push(begun.elapsed());
                }
                latencies
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.unwrap());
    }
    let took = start.elapsed();
    latencies.sort_unstable();
    let n = latencies.len();
    println!(
        "{what}: {:.0} commits/s, p50 {:?}, p99 {:?}, max {:?}, {} bytes written each",
        n as f64 / took.as_secs_f64(),
        latencies[n / 2],
        latencies[n * 99 / 100],
        latencies[n - 1],
        (written() - before) / n as u64
    );
}

async fn fill(store: &Store, objects: u64, bytes: usize) {
    let names = names();
    let mut pending = Vec::new();
    for n in 0..objects {
        let (store, write) = (store.clone(), pod(n, bytes, &names));
        pending.push(tokio::spawn(async move { store.commit(write).await.unwrap() }));
        if pending.len() == 512 {
            for task in pending.drain(..) {
                task.await.unwrap();
            }
        }
    }
    for task in pending {
        task.await.unwrap();
    }
}

async fn lists(store: &Store) {
    let pods = Resource::parse("pods");
    let start = Instant::now();
    let rounds = 200;
    let mut bytes = 0usize;
    for _ in 0..rounds {
        bytes += store.list(pods, None, None, None).iter().map(|record| record.len()).sum::<usize>();
    }
    let each = start.elapsed() / rounds;
    let count = store.count(pods);
    println!("list of {count}: {each:?} to walk {} MB", bytes / rounds as usize / 1_000_000);
    let start = Instant::now();
    let found: usize = (0..rounds)
        .map(|_| {
            let view = store.list(pods, None, None, None);
            view.iter()
                .filter(|r| {
                    r.meta().labels.get("app") == Some("web") && r.meta().fields.get("spec.nodeName") == Some("node-7")
                })
                .count()
        })
        .sum();
    println!(
        "list with label and field selector: {:?} for {} of {count}",
        start.elapsed() / rounds,
        found / rounds as usize
    );
    let start = Instant::now();
    for n in 0..100_000u64 {
        let n = n * 7919 % 17_000;
        assert!(store.get(pods, &format!("ns-{}", n % 20), &format!("web-7d4b9c6f5d-{n:06}")).is_some());
    }
    println!("get: {:?}", start.elapsed() / 100_000);
}

/// Measures the store in the directory that is the first argument.
pub fn run(args: &[String]) -> anyhow::Result<()> {
    let dir = args.first().context("usage: store DIR")?;
    block_on(2, measure(Path::new(dir)))
}

async fn measure(dir: &Path) -> anyhow::Result<()> {
    let open = |name: &str| {
        let start = Instant::now();
        let store = Store::open_dir(&dir.join(name), StoreOptions::default()).unwrap();
        println!("open {name}: {:?}, {} records", start.elapsed(), store.count(Resource::parse("pods")));
        store
    };
    drop(std::fs::remove_dir_all(dir));

    let store = open("memory");
    let before = resident();
    fill(&store, 17_000, 3400).await;
    println!(
        "17,000 pods of 3.4 KB: {} MB resident more, {} MB of JSON",
        (resident() - before) / 1_000_000,
        17_000 * 3400 / 1_000_000
    );
    lists(&store).await;
    store.close().await;
    drop(store);

    let store = open("commits");
    let s = Duration::from_secs(4);
    commits("1 writer, synced, 1.5 KB", &store, 1, 1500, s, false).await;
    commits("32 writers, synced, 1.5 KB", &store, 32, 1500, s, false).await;
    commits("128 writers, synced, 1.5 KB", &store, 128, 1500, s, false).await;
    commits("1 writer, relaxed, 400 B", &store, 1, 400, s, true).await;
    let idle = written();
    tokio::time::sleep(Duration::from_secs(15)).await;
    println!("idle 15 s: {} bytes written", written() - idle);
    store.close().await;

    let store = open("start");
    fill(&store, 100_000, 1500).await;
    store.close().await;
    drop(store);
    for _ in 0..3 {
        let store = open("start");
        store.close().await;
    }

    let memory = Arc::new(Store::in_memory(StoreOptions::default()));
    commits("memory engine, 32 writers", &memory, 32, 1500, s, false).await;
    Ok(())
}
