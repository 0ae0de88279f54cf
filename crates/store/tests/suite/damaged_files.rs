//! One fault in the files of a store that was killed: a flipped bit, a cut or a missing file, in every file and in every state of the
//! log.
//! In each case all acknowledged writes are there, or the store does not open and reports a file. `KELSON_DAMAGES` is the number of
//! flipped bits per file; `make torture` flips thousands.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kelson_store::{Body, Key, Precondition, RecordMeta, Resource, Store, StoreError, StoreOptions, Write};
use rusqlite::Connection;
use rusqlite::config::DbConfig;

/// The number of bits that are flipped in each file of each state.
const FLIPS: usize = 10;
const PAGE: usize = 4096;

/// The acknowledged writes: revisions by name.
type Acknowledged = BTreeMap<String, u64>;

fn things() -> Resource {
    Resource::parse("things")
}

fn body(name: &str, round: usize, payload: usize) -> Body {
    let payload = format!("{round}").repeat(payload);
    Body::locate(format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":""}},"payload":"{payload}"}}"#)).unwrap()
}

/// Creates, changes and deletes objects. Every fifth write is relaxed.
async fn work(store: &Store, acknowledged: &mut Acknowledged, round: usize, payload: usize) {
    for n in 0..20 {
        let name = format!("n{n}");
        let key = Key::new(things(), "ns", &name);
        let delete = (n + round) % 7 == 3;
        let write = match delete {
            true => Write::delete(key, Precondition::Any),
            false => Write::put(key, Precondition::Any, body(&name, round, payload), RecordMeta::with_uid("u")),
        };
        let write = if n % 5 == 4 { write.relaxed() } else { write };
        match store.commit(write).await {
            Ok(_) if delete => drop(acknowledged.remove(&name)),
            Ok(done) => drop(acknowledged.insert(name, done.revision)),
            Err(StoreError::NotFound) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// The files of a directory except the reserve file, which has no content.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let all = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap());
    let named = all.map(|file| (file.file_name().into_string().unwrap(), file.path()));
    named.filter(|(name, _)| name != "ballast").map(|(name, path)| (name, std::fs::read(path).unwrap())).collect()
}

fn write(dir: &Path, files: &BTreeMap<String, Vec<u8>>) {
    std::fs::create_dir_all(dir).unwrap();
    files.iter().for_each(|(name, bytes)| std::fs::write(dir.join(name), bytes).unwrap());
}

/// The files of a process that was killed after the checkpoint of the log, before it recorded the checkpoint.
fn carried_over(dir: &Path, of: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    write(dir, of);
    let connection = Connection::open(dir.join("store.db")).unwrap();
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE").unwrap();
    let left: (i64, i64) =
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?))).unwrap();
    assert_eq!(left.0, left.1, "all pages");
    drop(connection);
    let mut files = files(dir);
    files.retain(|name, _| of.contains_key(name));
    assert_eq!(files["store.db-wal"], of["store.db-wal"]);
    files
}

struct State {
    name: &'static str,
    files: BTreeMap<String, Vec<u8>>,
    acknowledged: Acknowledged,
}

/// The states that the files of a store go through.
async fn states(root: &Path) -> Vec<State> {
    let dir = root.join("store");
    let mut states = Vec::new();
    let mut acknowledged = Acknowledged::new();
    let mut note = |name, files, acknowledged: &Acknowledged| {
        states.push(State { name, files, acknowledged: acknowledged.clone() });
    };
    let store = Store::open_dir(&dir, StoreOptions::default()).unwrap();
    work(&store, &mut acknowledged, 1, 10).await;
    note("all in the log", files(&dir), &acknowledged);
    work(&store, &mut acknowledged, 2, 3000).await;
    let log_only = files(&dir);
    let carried = carried_over(&root.join("carried"), &log_only);
    let mut half = carried.clone();
    let (old, new) = (&log_only["store.db"], &carried["store.db"]);
    let middle = new.len() / PAGE / 2 * PAGE;
    let rest = old.get(middle..).unwrap_or_default();
    half.insert("store.db".into(), [&new[..middle], rest].concat());
    note("carried over in part", half, &acknowledged);
    note("carried over", carried, &acknowledged);
    // This writes more pages than the log takes before it is restarted.
    work(&store, &mut acknowledged, 3, 600_000).await;
    work(&store, &mut acknowledged, 4, 10).await;
    note("the log was begun again", files(&dir), &acknowledged);
    work(&store, &mut acknowledged, 5, 10).await;
    store.close().await;
    note("closed", files(&dir), &acknowledged);
    let store = Store::open_dir(&dir, StoreOptions::default()).unwrap();
    work(&store, &mut acknowledged, 6, 100).await;
    note("opened again", files(&dir), &acknowledged);
    store.close().await;
    states
}

/// The faults of one file: a description, and the bytes afterwards, or `None` if the file is removed.
fn faults(bytes: &[u8], flips: usize) -> Vec<(String, Option<Vec<u8>>)> {
    let mut all = vec![("removed".to_owned(), None), ("emptied".to_owned(), Some(Vec::new()))];
    for cut in [bytes.len() / 3, bytes.len() / 2, bytes.len().saturating_sub(PAGE), bytes.len().saturating_sub(1)] {
        all.push((format!("cut at {cut}"), Some(bytes[..cut].to_vec())));
    }
    // Headers are small, and most of their bytes matter.
    let head = (0..bytes.len().min(112)).step_by((112 / flips.max(1)).max(1));
    let spread = (0..flips).map(|n| (bytes.len() * n + n * 977) / flips.max(1));
    let tail = (1..=flips / 4).filter_map(|n| bytes.len().checked_sub(n * 331 + 1));
    for at in head.chain(spread).chain(tail).filter(|at| *at < bytes.len()) {
        let mut flipped = bytes.to_vec();
        flipped[at] ^= 1 << (at % 8);
        all.push((format!("flipped at {at}"), Some(flipped)));
    }
    all
}

/// Opens a damaged store and returns its content or its error.
async fn found(dir: PathBuf) -> Result<Acknowledged, String> {
    let options = StoreOptions { must_exist: true, ..StoreOptions::default() };
    let store = Store::open_dir(&dir, options).map_err(|error| error.to_string())?;
    let all = store.list(things(), None, None, None);
    let found = all.iter().map(|record| (record.key().name.to_string(), record.revision())).collect();
    store.close().await;
    Ok(found)
}

#[tokio::test]
async fn one_fault_in_a_file_loses_nothing_in_silence() {
    let flips = std::env::var("KELSON_DAMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(FLIPS);
    let root = tempfile::tempdir().unwrap();
    let (mut refused, mut whole) = (0, 0);
    for State { name: state, files, acknowledged } in states(root.path()).await {
        let untouched = root.path().join("untouched");
        write(&untouched, &files);
        assert_eq!(found(untouched.clone()).await, Ok(acknowledged.clone()), "{state}: nothing is damaged");
        std::fs::remove_dir_all(untouched).unwrap();
        // Large files get fewer faults.
        let large = files.values().map(Vec::len).sum::<usize>() > 4 << 20;
        for (file, bytes) in &files {
            for (what, damaged) in faults(bytes, if large { flips / 4 } else { flips }) {
                let dir = root.path().join("damaged");
                write(&dir, &files);
                match damaged {
                    Some(damaged) => std::fs::write(dir.join(file), damaged).unwrap(),
                    None => std::fs::remove_file(dir.join(file)).unwrap(),
                }
                match found(dir.clone()).await {
                    Ok(found) => {
                        assert_eq!(found, acknowledged, "{state}: {file} {what}");
                        whole += 1;
                    }
                    Err(said) => {
                        assert!(said.contains("store.db"), "{state}: {file} {what}: {said}");
                        refused += 1;
                    }
                }
                std::fs::remove_dir_all(dir).unwrap();
            }
        }
    }
    println!("{refused} refused, {whole} whole");
    assert!(refused > 50 && whole > 50, "{refused} refused, {whole} whole");
}

#[tokio::test]
async fn a_store_that_must_exist_is_not_created() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("store");
    let said = found(dir.clone()).await.unwrap_err();
    assert!(said.contains("store.db is missing") && said.contains("restore"), "{said}");
    assert!(!dir.exists(), "nothing is made");
    let store = Store::open_dir(&dir, StoreOptions::default()).unwrap();
    store.close().await;
    assert_eq!(found(dir).await, Ok(Acknowledged::new()));
}
