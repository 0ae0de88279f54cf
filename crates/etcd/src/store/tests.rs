//! The store with its files, its leases and its limits.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use kelson_tasks::Tasks;

use super::*;
use crate::error::Error;
use crate::mvcc::Limits;
use crate::proto::alarm_request::AlarmAction;
use crate::proto::*;

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> PutRequest {
    PutRequest { key: bytes(key), value: bytes(value), ..PutRequest::default() }
}

fn get(key: &str) -> RangeRequest {
    RangeRequest { key: bytes(key), ..RangeRequest::default() }
}

fn options(dir: Option<&Path>) -> Options {
    let limits = Limits { txn_ops_max: 128, request_bytes_max: 1 << 20, quota_bytes: Some(1 << 30) };
    Options { data_dir: dir.map(Path::to_path_buf), syncs: true, limits, auto_compaction: None }
}

async fn open(dir: &Path) -> (Store, Tasks) {
    let tasks = Tasks::root("test");
    let store = Store::open(options(Some(dir)), &tasks).await.unwrap();
    (store, tasks)
}

async fn close(store: Store, tasks: Tasks) {
    drop(store);
    assert!(tasks.shutdown(Duration::from_secs(60)).await);
}

/// Returns everything that must be the same after a start.
fn all_of(store: &Store) -> impl PartialEq + std::fmt::Debug + use<> {
    let shared = store.shared();
    let of = shared.read(|s| {
        let leases: Vec<_> = s.leases().map(|(id, l)| (id, l.seconds, l.keys.clone())).collect();
        (s.hash(0), s.revision(), s.compacted(), s.bytes(), s.keys(), leases)
    });
    (of, shared.identity(), shared.alarms())
}

fn files(dir: &Path) -> Vec<String> {
    let found = fs::read_dir(dir.join("kelson-etcd")).unwrap();
    let mut names: Vec<String> = found.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn everything_is_there_after_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let (store, tasks) = open(dir.path()).await;
    store.grant(7, 60).await.unwrap();
    store.grant(8, 60).await.unwrap();
    for i in 0..50 {
        store.put(PutRequest { lease: 7, ..put(&format!("k{}", i % 10), &i.to_string()) }).await.unwrap();
    }
    store.put(PutRequest { lease: 8, ..put("short", "") }).await.unwrap();
    store.revoke(8).await.unwrap();
    store.delete_range(DeleteRangeRequest { key: bytes("k3"), ..DeleteRangeRequest::default() }).await.unwrap();
    store.compact(20, true).await.unwrap();
    let before = all_of(&store);
    close(store, tasks).await;
    let (store, tasks) = open(dir.path()).await;
    assert_eq!(all_of(&store), before);
    // The rewritten files have the same content.
    store.put(put("more", "")).await.unwrap();
    let before = all_of(&store);
    store.defragment().await.unwrap();
    assert_eq!(files(dir.path()), ["log-0000000000000002", "position", "snapshot-0000000000000002"]);
    close(store, tasks).await;
    let (store, tasks) = open(dir.path()).await;
    assert_eq!(all_of(&store), before);
    // A compaction up to the last deletion does not change the revision.
    store.delete_range(DeleteRangeRequest { key: bytes("more"), ..DeleteRangeRequest::default() }).await.unwrap();
    store.compact(store.revision(), true).await.unwrap();
    store.defragment().await.unwrap();
    let before = all_of(&store);
    close(store, tasks).await;
    let (store, tasks) = open(dir.path()).await;
    assert_eq!(all_of(&store), before);
    close(store, tasks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_while_writers_write_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, tasks) = open(dir.path()).await;
    for i in 0..3000 {
        store.put(put(&format!("k{i:04}"), "first")).await.unwrap();
    }
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for i in 0..500 {
                store.put(put(&format!("k{:04}", i * 7 % 3000), &i.to_string())).await.unwrap();
                if i == 250 {
                    store.compact(store.revision() - 10, false).await.unwrap();
                }
            }
        })
    };
    for _ in 0..3 {
        store.defragment().await.unwrap();
    }
    writer.await.unwrap();
    store.compact(store.revision(), true).await.unwrap();
    let before = all_of(&store);
    close(store, tasks).await;
    let (store, tasks) = open(dir.path()).await;
    assert_eq!(all_of(&store), before);
    close(store, tasks).await;
}

#[tokio::test]
async fn a_commit_that_was_cut_goes_and_damage_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (store, tasks) = open(dir.path()).await;
    store.put(put("a", "1")).await.unwrap();
    let before = all_of(&store);
    let position = dir.path().join("kelson-etcd/position");
    let noted = fs::read(&position).unwrap();
    store.put(put("a", "2")).await.unwrap();
    close(store, tasks).await;
    let acknowledged = fs::read(&position).unwrap();
    let log = dir.path().join("kelson-etcd/log-0000000000000001");
    let whole = fs::read(&log).unwrap();
    fs::write(&log, &whole[..whole.len() - 1]).unwrap();
    let error = Store::open(options(Some(dir.path())), &Tasks::root("test")).await.unwrap_err().to_string();
    assert!(error.contains("log-0000000000000001 is damaged") && error.contains("acknowledged"), "{error}");
    assert_eq!(fs::read(&position).unwrap(), acknowledged, "a start that is refused changes nothing");
    // The state after the process was killed while it wrote.
    fs::write(&position, noted).unwrap();
    let (store, tasks) = open(dir.path()).await;
    assert_eq!(all_of(&store), before);
    // The next commit is at the position of the truncated one.
    store.put(put("a", "3")).await.unwrap();
    let before = all_of(&store);
    close(store, tasks).await;
    let (store, tasks) = open(dir.path()).await;
    assert_eq!(all_of(&store), before);
    close(store, tasks).await;
    let mut damaged = fs::read(&log).unwrap();
    damaged[20] ^= 1;
    fs::write(&log, damaged).unwrap();
    let error = Store::open(options(Some(dir.path())), &Tasks::root("test")).await.unwrap_err().to_string();
    assert!(error.contains("log-0000000000000001 is damaged at byte 0"), "{error}");
}

#[tokio::test]
async fn a_directory_of_another_etcd_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("member/snap")).unwrap();
    fs::write(dir.path().join("member/snap/db"), "bolt").unwrap();
    let error = Store::open(options(Some(dir.path())), &Tasks::root("test")).await.unwrap_err().to_string();
    assert!(error.contains("another etcd"), "{error}");
    assert!(!dir.path().join("kelson-etcd").exists());
}

#[tokio::test(start_paused = true)]
async fn leases_end_by_themselves_unless_renewed() {
    let tasks = Tasks::root("test");
    let store = Store::open(options(None), &tasks).await.unwrap();
    let (id, seconds) = store.grant(0, 10).await.unwrap();
    assert!(id > 0 && seconds == 10);
    store.put(PutRequest { lease: id, ..put("a", "") }).await.unwrap();
    assert_eq!(store.grant(id, 10).await, Err(Error::LeaseExists));
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(store.lease(id, true), Some((2, 10, vec![bytes("a")])));
    assert_eq!(store.renew(id), Ok(10));
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(store.range(&get("a")).unwrap().count, 1);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((store.range(&get("a")).unwrap().count, store.lease(id, false)), (0, None));
    assert_eq!(store.renew(id), Err(Error::LeaseNotFound));
    // A shorter lease that is granted later ends first.
    let (long, short) = (store.grant(0, 100).await.unwrap().0, store.grant(0, 5).await.unwrap().0);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(store.lease(long, false).is_some() && store.lease(short, false).is_none());
}

#[tokio::test(start_paused = true)]
async fn the_past_is_compacted_by_itself() {
    let tasks = Tasks::root("test");
    let keep = Some(AutoCompaction::Time(Duration::from_secs(300)));
    let store = Store::open(Options { auto_compaction: keep, ..options(None) }, &tasks).await.unwrap();
    for i in 0..20 {
        store.put(put("a", &i.to_string())).await.unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    tokio::time::sleep(Duration::from_secs(290)).await;
    let (compacted, revision) = store.shared().read(|s| (s.compacted(), s.revision()));
    assert!(compacted > 2 && compacted < revision, "{compacted} of {revision}");
}

#[tokio::test]
async fn a_full_store_takes_deletions_alone() {
    let tasks = Tasks::root("test");
    let limits = Limits { quota_bytes: Some(1000), request_bytes_max: 2000, txn_ops_max: 128 };
    let store = Store::open(Options { limits, ..options(None) }, &tasks).await.unwrap();
    store.put(put("a", &"x".repeat(700))).await.unwrap();
    assert_eq!(store.put(put("b", &"x".repeat(700))).await, Err(Error::NoSpace));
    assert_eq!(store.put(put("c", "small")).await, Err(Error::NoSpace), "the alarm is on");
    assert_eq!(store.grant(1, 10).await, Err(Error::NoSpace));
    assert_eq!(store.put(put("d", &"x".repeat(3000))).await, Err(Error::RequestTooLarge));
    let member_id = store.shared().identity().member_id;
    let alarm =
        |action: AlarmAction| AlarmRequest { action: action as i32, member_id, alarm: AlarmType::Nospace as i32 };
    assert_eq!(store.alarm(alarm(AlarmAction::Get)).await.unwrap().len(), 1);
    store.delete_range(DeleteRangeRequest { key: bytes("a"), ..DeleteRangeRequest::default() }).await.unwrap();
    store.compact(store.revision(), true).await.unwrap();
    assert_eq!(store.put(put("c", "small")).await, Err(Error::NoSpace), "until somebody says that it is over");
    store.alarm(alarm(AlarmAction::Deactivate)).await.unwrap();
    store.put(put("c", "small")).await.unwrap();
}

#[tokio::test]
async fn writers_that_wait_together_get_revisions_in_a_row() {
    let dir = tempfile::tempdir().unwrap();
    let (store, tasks) = open(dir.path()).await;
    let writes = (0..100).map(|i| {
        let store = store.clone();
        tokio::spawn(async move { store.put(put(&format!("k{i}"), "")).await.unwrap().header.unwrap().revision })
    });
    let mut revisions = Vec::new();
    for write in writes.collect::<Vec<_>>() {
        revisions.push(write.await.unwrap());
    }
    revisions.sort_unstable();
    assert_eq!(revisions, (2..=101).collect::<Vec<_>>());
    close(store, tasks).await;
}

/// The number of bits flipped in each file of each state; `KELSON_DAMAGES` overrides it.
const FLIPS: usize = 24;

/// Returns all files below a store's directory.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| (name.clone(), fs::read(dir.join("kelson-etcd").join(&name)).unwrap());
    files(dir).into_iter().map(read).collect()
}

/// Faults of a file: a description, and the content; `None` removes the file.
fn faults(bytes: &[u8], flips: usize) -> Vec<(String, Option<Vec<u8>>)> {
    let mut all = vec![("removed".to_owned(), None), ("emptied".to_owned(), Some(Vec::new()))];
    for cut in [bytes.len() / 3, bytes.len() / 2, bytes.len().saturating_sub(20), bytes.len().saturating_sub(1)] {
        all.push((format!("cut at {cut}"), Some(bytes[..cut].to_vec())));
    }
    let tail = (1..=flips / 3).filter_map(|n| bytes.len().checked_sub(n * 7));
    for at in (0..flips).map(|n| bytes.len() * n / flips).chain(tail).filter(|at| *at < bytes.len()) {
        let mut flipped = bytes.to_vec();
        flipped[at] ^= 1 << (at % 8);
        all.push((format!("flipped at {at}"), Some(flipped)));
    }
    all
}

#[tokio::test]
async fn one_fault_in_a_file_loses_nothing_in_silence() {
    let flips = std::env::var("KELSON_DAMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(FLIPS);
    let dir = tempfile::tempdir().unwrap();
    let mut states = Vec::new();
    let (store, tasks) = open(dir.path()).await;
    store.grant(7, 60).await.unwrap();
    for n in 0..6 {
        store.put(PutRequest { lease: 7, ..put(&format!("k{n}"), "v") }).await.unwrap();
    }
    states.push(("one log", contents(dir.path()), format!("{:?}", all_of(&store))));
    // A hard link keeps the first log, which is removed with the snapshot.
    let first = dir.path().join("kelson-etcd/log-0000000000000001");
    fs::hard_link(&first, dir.path().join("first")).unwrap();
    store.defragment().await.unwrap();
    let first_log = ("log-0000000000000001".to_owned(), fs::read(dir.path().join("first")).unwrap());
    states.push(("a new log, empty", contents(dir.path()), format!("{:?}", all_of(&store))));
    store.put(put("k1", "w")).await.unwrap();
    store.delete_range(DeleteRangeRequest { key: bytes("k2"), ..DeleteRangeRequest::default() }).await.unwrap();
    states.push(("a snapshot and a log", contents(dir.path()), format!("{:?}", all_of(&store))));
    close(store, tasks).await;
    let mut both = states[2].1.clone();
    both.retain(|(name, _)| !name.starts_with("snapshot"));
    both.push(first_log);
    let all = states[2].2.clone();
    states.push(("two logs and no snapshot yet", both, all));
    let (mut refused, mut whole) = (0, 0);
    for (state, files, before) in &states {
        for (file, bytes) in files {
            let untouched = ("not touched".to_owned(), Some(bytes.clone()));
            for (what, damaged) in faults(bytes, flips).into_iter().chain([untouched]) {
                let dir = tempfile::tempdir().unwrap();
                let at = dir.path().join("kelson-etcd");
                fs::create_dir(&at).unwrap();
                for (name, bytes) in files {
                    match &damaged {
                        None if name == file => {}
                        Some(damaged) if name == file => fs::write(at.join(name), damaged).unwrap(),
                        _ => fs::write(at.join(name), bytes).unwrap(),
                    }
                }
                let tasks = Tasks::root("test");
                match Store::open(options(Some(dir.path())), &tasks).await {
                    Ok(store) => {
                        assert_eq!(&format!("{:?}", all_of(&store)), before, "{state}: {file} {what}");
                        close(store, tasks).await;
                        whole += 1;
                    }
                    Err(error) => {
                        let said = error.to_string();
                        assert!(
                            said.contains("log-0") || said.contains("snapshot-0"),
                            "{state}: {file} {what}: {said}"
                        );
                        assert_ne!(what, "not touched", "{state}: {said}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(refused > 50 && whole > 20, "{refused} refused, {whole} whole");
}
