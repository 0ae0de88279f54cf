//! `kelson snapshot`: a cluster as one file. A snapshot is a bundle of `kelson-bundle`; earlier releases wrote the store's
//! file followed by its SHA-256, which `restore` and `verify` still read.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use kelson_bundle::{Passphrase, Staged, StoreSummary, is_sealed};
use kelson_platform::files::{exchange, private, sync_names};
use kelson_store::Contents;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::bundle::{self, STORE, STORE_FILE};
use crate::lock::DataDirLock;
use crate::snapshot_flags::{SnapshotCommand, passphrase};
use crate::snapshot_list;
use crate::token;

/// The directory below a data directory for snapshots until they are fetched.
pub const DIR: &str = "snapshots";
const DIGEST_BYTES: usize = 32;
const COPY_BUFFER_BYTES: usize = 1 << 20;
/// The path of the API for creating a snapshot.
const PATH: &str = "/kelson/snapshots";
/// The first bytes of a store's file, with which snapshots of earlier releases begin.
const STORE_MAGIC: &[u8] = b"SQLite format 3\0";

/// The entries of a bundle without which it cannot be restored.
const NEEDED: [&str; 4] = ["store/store.db", "pki/ca.crt", "pki/ca.key", "pki/sa.key"];

/// The answer of the server.
#[derive(Deserialize)]
struct Saved {
    path: PathBuf,
}

/// Runs a subcommand.
pub async fn run(command: SnapshotCommand) -> anyhow::Result<()> {
    match command {
        SnapshotCommand::Save { file, seal, data_dir } => {
            save(&file, passphrase(seal.passphrase_file.as_ref())?.as_ref(), &data_dir).await
        }
        SnapshotCommand::Restore { file, open, objects_only, data_dir } => {
            restore(&file, passphrase(open.passphrase_file.as_ref())?.as_ref(), objects_only, &data_dir)
        }
        SnapshotCommand::Verify { file, open } => check(&file, passphrase(open.passphrase_file.as_ref())?.as_ref()),
        SnapshotCommand::List { dir } => snapshot_list::list(&dir),
        SnapshotCommand::Prune { dir, keep } => snapshot_list::prune(&dir, keep),
    }
}

async fn save(target: &Path, passphrase: Option<&Passphrase>, data_dir: &Path) -> anyhow::Result<()> {
    let is_dir = target.is_dir();
    if target.exists() && !is_dir {
        bail!("{} already exists", target.display());
    }
    let client = token::admin(data_dir)?;
    let answer = client.call(Method::POST, PATH, "application/json", Bytes::new()).await;
    if let Err(error) = &answer
        && error.status().is_some_and(|status| status.code == 404)
    {
        bail!(
            "the objects of this server are in etcd; save them with etcdctl snapshot save, and copy {}/pki",
            data_dir.display()
        );
    }
    let answer = token::reaching(data_dir, answer.map_err(Into::into))?;
    let saved: Saved = kelson_meta::from_json(&answer).context("read the server's answer")?;
    // The file is verified by reading it again, since the server's answer only says what it wrote.
    let written = verify(&saved.path, &saved.path).and_then(|contents| {
        let file = match is_dir {
            true => target.join(snapshot_list::name(Timestamp::now(), contents.revision)),
            false => target.to_owned(),
        };
        write(data_dir, &saved.path.join(STORE_FILE), &contents, passphrase, &file)?;
        Ok((file, contents))
    });
    fs::remove_dir_all(&saved.path).with_context(|| format!("remove {}", saved.path.display()))?;
    let (file, contents) = written?;
    outln!("{}: {}", file.display(), reported(&contents));
    Ok(())
}

/// Writes a bundle under a temporary name first, so that a file with the final name is whole.
fn write(
    data_dir: &Path,
    store: &Path,
    contents: &Contents,
    passphrase: Option<&Passphrase>,
    file: &Path,
) -> anyhow::Result<()> {
    let dir = parent(file);
    let temporary = tempfile::Builder::new().prefix(".kelson-snapshot.").tempdir_in(dir)?;
    let written = temporary.path().join("bundle");
    let summary = StoreSummary {
        revision: contents.revision,
        objects: contents.records.values().sum(),
        kinds: contents.records.len(),
        encrypted: contents.encrypted,
    };
    let done = bundle::write(data_dir, (store, summary), passphrase, &written);
    done.with_context(|| format!("write {}", file.display()))?;
    if file.exists() {
        bail!("{} already exists", file.display());
    }
    fs::rename(&written, file).with_context(|| format!("write {}", file.display()))?;
    sync_names(dir).with_context(|| format!("write {}", file.display()))
}

fn parent(file: &Path) -> &Path {
    file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn extract(file: &Path, passphrase: Option<&Passphrase>, dir: &Path) -> anyhow::Result<Staged> {
    let from = File::open(file).with_context(|| file.display().to_string())?;
    let staged = Staged::extract(BufReader::new(from), passphrase, dir, &NEEDED);
    staged.with_context(|| file.display().to_string())
}

fn check(file: &Path, passphrase: Option<&Passphrase>) -> anyhow::Result<()> {
    let dir = tempfile::tempdir_in(parent(file))?;
    if is_store_file(file)? {
        unpack(file, dir.path())?;
        outln!("{}: {}", file.display(), reported(&verify(dir.path(), file)?));
        return Ok(());
    }
    let staged = extract(file, passphrase, dir.path())?;
    let contents = verify(&staged.path().join(STORE), file)?;
    let manifest = &staged.extracted().manifest;
    let seal = if is_sealed(file)? { "sealed" } else { "not sealed" };
    outln!(
        "{}: {}; {seal}, of {} by Kelson {}",
        file.display(),
        reported(&contents),
        manifest.created,
        manifest.kelson_version
    );
    Ok(())
}

/// Reports whether a file is a snapshot of a release before bundles.
fn is_store_file(file: &Path) -> anyhow::Result<bool> {
    let mut first = Vec::with_capacity(STORE_MAGIC.len());
    let read = File::open(file).and_then(|f| f.take(STORE_MAGIC.len() as u64).read_to_end(&mut first));
    read.with_context(|| format!("read {}", file.display()))?;
    Ok(first == STORE_MAGIC)
}

fn restore(file: &Path, passphrase: Option<&Passphrase>, objects_only: bool, data_dir: &Path) -> anyhow::Result<()> {
    let _lock = DataDirLock::make(data_dir)?;
    kelson_bundle::complete(data_dir)?;
    if data_dir.join("etcd").exists() {
        bail!("the objects of {} are in etcd; restore into an empty data directory", data_dir.display());
    }
    if is_store_file(file)? {
        let fresh = tempfile::Builder::new().prefix("store.restoring.").tempdir_in(data_dir)?;
        unpack(file, fresh.path())?;
        return restore_store(fresh, file, data_dir);
    }
    let staged = extract(file, passphrase, data_dir)?;
    if objects_only {
        let fresh = tempfile::Builder::new().prefix("store.restoring.").tempdir_in(data_dir)?;
        fs::rename(staged.path().join(STORE).join(STORE_FILE), fresh.path().join(STORE_FILE))
            .context("restore the objects")?;
        return restore_store(fresh, file, data_dir);
    }
    let contents = verify(&staged.path().join(STORE), file)?;
    for replaced in staged.install(data_dir, Timestamp::now())? {
        outln!("the previous data is in {}", replaced.display());
    }
    outln!("restored: {}", reported(&contents));
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

/// Puts a store in a temporary directory in place of the present one.
fn restore_store(fresh: tempfile::TempDir, file: &Path, data_dir: &Path) -> anyhow::Result<()> {
    let contents = verify(fresh.path(), file)?;
    // The whole snapshot is on disk before the first rename.
    sync_names(fresh.path()).and_then(|()| sync_names(data_dir)).context("sync the snapshot")?;
    let store = data_dir.join("store");
    let aside = data_dir.join(format!("store.before-{}", Timestamp::now().as_second()));
    if put_in_place(&fresh.keep(), &store, &aside, exchange).with_context(|| store.display().to_string())? {
        outln!("the previous data is in {}", aside.display());
    }
    sync_names(data_dir).context("sync the data directory")?;
    outln!("restored: {}", reported(&contents));
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

fn reported(contents: &Contents) -> String {
    let objects: usize = contents.records.values().sum();
    let (revision, encrypted) = (contents.revision, contents.encrypted);
    format!("revision {revision}, {objects} objects of {} kinds, {encrypted} of them encrypted", contents.records.len())
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
mod tests;
