//! `kelson snapshot`: snapshots of a server's objects as one file, which is the store's own file followed by its
//! SHA-256. The keys in `DIR/pki`, and the encryption configuration if there is one, are not included.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use kelson_platform::files::{exchange, private, sync_names};
use kelson_store::Contents;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::cli::SnapshotCommand;
use crate::lock::DataDirLock;
use crate::token;

/// The file of a store within its directory, and the files that may accompany it.
const STORE_FILE: &str = "store.db";
/// The directory below a data directory for snapshots until they are fetched.
pub const DIR: &str = "snapshots";
const DIGEST_BYTES: usize = 32;
const COPY_BUFFER_BYTES: usize = 1 << 20;
/// The path of the API for creating a snapshot.
const PATH: &str = "/kelson/snapshots";

/// The answer of the server.
#[derive(Deserialize)]
struct Saved {
    path: std::path::PathBuf,
}

/// Runs a subcommand.
pub async fn run(command: SnapshotCommand) -> anyhow::Result<()> {
    match command {
        SnapshotCommand::Save { file, data_dir } => save(&file, &data_dir).await,
        SnapshotCommand::Restore { file, data_dir } => restore(&file, &data_dir),
        SnapshotCommand::Verify { file } => {
            let dir =
                tempfile::tempdir_in(file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
            unpack(&file, dir.path())?;
            outln!("{}: {}", file.display(), told(&verify(dir.path(), &file)?));
            Ok(())
        }
    }
}

async fn save(file: &Path, data_dir: &Path) -> anyhow::Result<()> {
    if file.exists() {
        bail!("{} already exists", file.display());
    }
    let client = token::admin(data_dir)?;
    let answer = client.call(Method::POST, PATH, "application/json", Bytes::new()).await;
    let answer = token::reaching(data_dir, answer.map_err(Into::into))?;
    let saved: Saved = kelson_meta::from_json(&answer).context("read the server's answer")?;
    // The file is verified by reading it again, since the server's answer only says what it wrote.
    let packed = verify(&saved.path, &saved.path).and_then(|contents| {
        pack(&saved.path.join(STORE_FILE), file)?;
        Ok(contents)
    });
    fs::remove_dir_all(&saved.path).with_context(|| format!("remove {}", saved.path.display()))?;
    outln!("{}: {}", file.display(), told(&packed?));
    Ok(())
}

/// Removes snapshots that were never fetched.
pub fn discard_unfetched(data_dir: &Path) {
    match fs::remove_dir_all(data_dir.join(DIR)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, "removing abandoned snapshots failed");
        }
        _ => {}
    }
}

fn restore(file: &Path, data_dir: &Path) -> anyhow::Result<()> {
    let _lock = DataDirLock::make(data_dir)?;
    let fresh = tempfile::Builder::new().prefix("store.restoring.").tempdir_in(data_dir)?;
    unpack(file, fresh.path())?;
    let contents = verify(fresh.path(), file)?;
    // The whole snapshot is on disk before the first rename.
    sync_names(fresh.path()).and_then(|()| sync_names(data_dir)).context("sync the snapshot")?;
    let store = data_dir.join("store");
    let aside = data_dir.join(format!("store.before-{}", Timestamp::now().as_second()));
    if put_in_place(&fresh.keep(), &store, &aside, exchange).with_context(|| store.display().to_string())? {
        outln!("the previous data is in {}", aside.display());
    }
    sync_names(data_dir).context("sync the data directory")?;
    outln!("restored: {}", told(&contents));
    Ok(())
}

/// Renames a new store to the store's name, and the previous one to another name. If the system can exchange names,
/// there is always a store; otherwise an interruption between two renames leaves none, and the server does not start
/// without one. Returns whether there was a store.
fn put_in_place(
    fresh: &Path,
    store: &Path,
    aside: &Path,
    exchange: impl Fn(&Path, &Path) -> std::io::Result<()>,
) -> std::io::Result<bool> {
    if !store.exists() {
        return fs::rename(fresh, store).map(|()| false);
    }
    match exchange(fresh, store) {
        Ok(()) => fs::rename(fresh, aside)?,
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
            fs::rename(store, aside)?;
            fs::rename(fresh, store)?;
        }
        Err(error) => return Err(error),
    }
    Ok(true)
}

fn verify(dir: &Path, named: &Path) -> anyhow::Result<Contents> {
    kelson_store::verify(dir).with_context(|| format!("{} is not a valid snapshot", named.display()))
}

fn told(contents: &Contents) -> String {
    let objects: usize = contents.records.values().sum();
    let (revision, encrypted) = (contents.revision, contents.encrypted);
    format!("revision {revision}, {objects} objects of {} kinds, {encrypted} of them encrypted", contents.records.len())
}

/// Writes a store's file and its digest to a new file for its owner only.
fn pack(store: &Path, file: &Path) -> anyhow::Result<()> {
    let packed = || -> std::io::Result<()> {
        let mut from = File::open(store)?;
        let mut to = private(OpenOptions::new().write(true).create_new(true)).open(file)?;
        let digest = copy(&mut from, &mut to, u64::MAX)?;
        to.write_all(&digest)?;
        to.sync_all()
    };
    packed().with_context(|| format!("write {}", file.display()))
}

/// Writes the content of a snapshot into a directory, after verifying its digest.
fn unpack(file: &Path, dir: &Path) -> anyhow::Result<()> {
    let unpacked = || -> std::io::Result<bool> {
        let mut from = File::open(file)?;
        let Some(len) = from.metadata()?.len().checked_sub(DIGEST_BYTES as u64) else { return Ok(false) };
        let mut to = private(OpenOptions::new().write(true).create_new(true)).open(dir.join(STORE_FILE))?;
        let digest = copy(&mut from, &mut to, len)?;
        let mut kept = [0; DIGEST_BYTES];
        from.read_exact(&mut kept)?;
        to.sync_all()?;
        Ok(digest == kept)
    };
    match unpacked().with_context(|| format!("read {}", file.display()))? {
        true => Ok(()),
        false => bail!("{} is truncated or damaged: checksum mismatch", file.display()),
    }
}

/// Copies at most `len` bytes and returns their digest.
fn copy(from: &mut impl Read, to: &mut impl Write, len: u64) -> std::io::Result<[u8; DIGEST_BYTES]> {
    let mut from = from.take(len);
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    let mut digest = Sha256::new();
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(digest.finalize().into()),
            n => {
                digest.update(&buffer[..n]);
                to.write_all(&buffer[..n])?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kelson_store::{Body, Key, RecordMeta, Resource, Store, StoreOptions, Write};

    use super::*;

    #[test]
    fn a_store_has_its_name_all_the_time() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let holds = |name: &str| fs::read_to_string(at(name).join(STORE_FILE)).ok();
        let make = |name: &str| {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join(STORE_FILE), name).unwrap();
        };
        let never = |_: &Path, _: &Path| -> std::io::Result<()> { panic!("there is nothing to exchange") };
        make("fresh");
        assert!(!put_in_place(&at("fresh"), &at("store"), &at("aside"), never).unwrap());
        make("second");
        let seen = |one: &Path, other: &Path| {
            assert!(one.exists() && other.exists(), "no name was given up before");
            exchange(one, other)
        };
        assert!(put_in_place(&at("second"), &at("store"), &at("aside"), seen).unwrap());
        assert_eq!((holds("store"), holds("aside")), (Some("second".into()), Some("fresh".into())));
        make("third");
        let unsupported = |_: &Path, _: &Path| Err(std::io::ErrorKind::Unsupported.into());
        assert!(put_in_place(&at("third"), &at("store"), &at("other"), unsupported).unwrap());
        assert_eq!((holds("store"), holds("other")), (Some("third".into()), Some("second".into())));
        make("fourth");
        let broken = |_: &Path, _: &Path| Err(std::io::ErrorKind::PermissionDenied.into());
        assert!(put_in_place(&at("fourth"), &at("store"), &at("more"), broken).is_err());
        assert_eq!(holds("store"), Some("third".into()), "nothing was moved");
        fs::create_dir_all(at(DIR).join("x")).unwrap();
        discard_unfetched(dir.path());
        discard_unfetched(dir.path());
        assert!(!at(DIR).exists());
    }

    #[tokio::test]
    async fn a_copy_is_restored_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let (data, file) = (dir.path().join("data"), dir.path().join("copy"));
        let store = Store::open_dir(&data.join("store"), StoreOptions::default()).unwrap();
        let body = Body::locate(r#"{"metadata":{"name":"a","resourceVersion":""}}"#).unwrap();
        let key = Key::new(Resource::parse("pods"), "default", "a");
        store.commit(Write::create(key, body, RecordMeta::with_uid("u"))).await.unwrap();
        store.save(&dir.path().join("made")).unwrap();
        store.close().await;
        pack(&dir.path().join("made").join(STORE_FILE), &file).unwrap();

        restore(&file, &data).unwrap();
        let restored = Store::open_dir(&data.join("store"), StoreOptions::default()).unwrap();
        assert_eq!(restored.count(Resource::parse("pods")), 1);
        restored.close().await;
        let aside = fs::read_dir(&data).unwrap().filter_map(Result::ok);
        assert_eq!(aside.filter(|e| e.file_name().to_string_lossy().starts_with("store.before-")).count(), 1);

        let whole = fs::read(&file).unwrap();
        let before = fs::read(data.join("store").join(STORE_FILE)).unwrap();
        for damage in [whole[..whole.len() - 1].to_vec(), whole[..20].to_vec(), {
            let mut flipped = whole.clone();
            flipped[5000] ^= 1;
            flipped
        }] {
            fs::write(&file, damage).unwrap();
            assert!(restore(&file, &data).is_err());
            assert_eq!(fs::read(data.join("store").join(STORE_FILE)).unwrap(), before, "nothing was touched");
        }
        let _lock = DataDirLock::take(&data).unwrap();
        fs::write(&file, &whole).unwrap();
        assert!(restore(&file, &data).unwrap_err().to_string().contains("in use"), "a server runs");
    }
}
