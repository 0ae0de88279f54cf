//! `kelson snapshot`: a cluster as one file. A snapshot is a bundle of `kelson-bundle`; earlier releases wrote the store's
//! file followed by its SHA-256, which `restore` and `verify` still read.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]
use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use kelson_bundle::{Passphrase, Staged, StoreSummary, TOTAL_BYTES_MAX, is_sealed};
use kelson_client::Client;
use kelson_etcd_store::migrate::place;
use kelson_platform::files::{exchange, make_private_dir, private, sync_names};
use kelson_s3::S3Bucket;
use kelson_store::Contents;
use kelson_tasks::Lane;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::bundle::{self, STORE, STORE_FILE};
use crate::lock::DataDirLock;
use crate::s3_flags::S3Args;
use crate::snapshot_flags::{SnapshotCommand, passphrase};
use crate::snapshot_list;
use crate::token;

/// The directory below a data directory for snapshots until they are fetched.
pub const DIR: &str = "snapshots";
const DIGEST_BYTES: usize = 32;
const COPY_BUFFER_BYTES: usize = 1 << 20;
/// The prefix of directories for snapshots on their way to or from a bucket.
const FETCHED: &str = ".kelson-snapshot.";
/// One at a time: each seals all objects.
static WRITING: Lane = Lane::new("snapshot-bundle", 1);
/// The path of the API for creating a snapshot.
const PATH: &str = "/kelson/snapshots";
/// The first bytes of a store's file, with which snapshots of earlier releases begin.
const STORE_MAGIC: &[u8] = b"SQLite format 3\0";

/// The directory of the etcd member in a data directory.
const MEMBER: &str = "etcd";
/// What is printed after a restore into the data directory of a server with an etcd member.
const WITHOUT_MEMBER: &str = "\
the objects are in the embedded store now
1. start this server with --cluster-init to store them in a new etcd member
2. on each other server: stop it, remove DIR/etcd, and start it with --server and --token, so that it joins again
";

/// The entries of a bundle without which it cannot be restored.
const NEEDED: [&str; 4] = ["store/store.db", "pki/ca.crt", "pki/ca.key", "pki/sa.key"];

/// The answer of the server.
#[derive(Deserialize)]
struct Saved {
    path: PathBuf,
}

/// A snapshot that was written.
pub struct SavedBundle {
    /// The file that holds it.
    pub file: PathBuf,
    /// What it contains.
    pub contents: Contents,
}

/// Runs a subcommand.
pub async fn run(command: SnapshotCommand) -> anyhow::Result<()> {
    match command {
        SnapshotCommand::Save { file, seal, s3, data_dir } => {
            save_as_asked(file.as_deref(), passphrase(seal.passphrase_file.as_ref())?, &s3, &data_dir).await
        }
        SnapshotCommand::Restore { file, open, s3, objects_only, data_dir } => {
            // Locked only to make the directory and to see that no server runs; the restore locks it again.
            let dir = || DataDirLock::make(&data_dir).map(|_| data_dir.clone());
            let source = Source::of(file, &s3, dir).await?;
            restore(&source.file, passphrase(open.passphrase_file.as_ref())?.as_ref(), objects_only, &data_dir)
        }
        SnapshotCommand::Verify { file, open, s3 } => {
            let source = Source::of(file, &s3, || Ok(std::env::temp_dir())).await?;
            check(&source.file, passphrase(open.passphrase_file.as_ref())?.as_ref())
        }
        SnapshotCommand::List { dir, s3 } => {
            let files = match (s3.bucket()?, dir) {
                (Some(bucket), _) => snapshot_list::of_bucket(&bucket).await?,
                (None, dir) => snapshot_list::of_dir(&dir.context("DIR or --s3 is required")?)?,
            };
            out!("{}", snapshot_list::table(&files));
            Ok(())
        }
        SnapshotCommand::Prune { dir, s3, keep } => {
            let deleted = match (s3.bucket()?, dir) {
                (Some(bucket), _) => snapshot_list::prune_bucket(&bucket, keep).await?,
                (None, dir) => snapshot_list::prune_dir(&dir.context("DIR or --s3 is required")?, keep)?,
            };
            for name in deleted {
                outln!("deleted {name}");
            }
            Ok(())
        }
    }
}

/// A snapshot to read.
struct Source {
    file: PathBuf,
    /// The directory into which it was fetched, which is deleted afterwards.
    _fetched: Option<TempDir>,
}

impl Source {
    /// Returns the file of this name, or with --s3 the object of this name, fetched into a directory below `dir`.
    async fn of(file: PathBuf, s3: &S3Args, dir: impl FnOnce() -> anyhow::Result<PathBuf>) -> anyhow::Result<Self> {
        let Some(bucket) = s3.bucket()? else { return Ok(Self { file, _fetched: None }) };
        let name = file.to_str().context("the name of the snapshot is not text")?;
        let dir = tempfile::Builder::new().prefix(FETCHED).tempdir_in(dir()?)?;
        let to = dir.path().join("bundle");
        let fetched = bucket.get(name, &to, TOTAL_BYTES_MAX).await;
        fetched.with_context(|| format!("get {name} from {}", bucket.base()))?;
        Ok(Self { file: to, _fetched: Some(dir) })
    }
}

/// Saves a snapshot of the server with this data directory into a file or directory, and with --s3 into the bucket.
async fn save_as_asked(
    target: Option<&Path>,
    passphrase: Option<Passphrase>,
    s3: &S3Args,
    data_dir: &Path,
) -> anyhow::Result<()> {
    let bucket = s3.bucket()?;
    let new_dir = || tempfile::Builder::new().prefix(FETCHED).tempdir_in(data_dir);
    let temporary = target.is_none().then(new_dir).transpose()?;
    let target = temporary.as_ref().map(TempDir::path).or(target).context("FILE or --s3 is required")?;
    if target.exists() && !target.is_dir() {
        bail!("{} already exists", target.display());
    }
    let client = token::admin(data_dir)?;
    let SavedBundle { file, contents } = save(&client, data_dir, target, passphrase.map(Arc::new)).await?;
    if temporary.is_none() {
        outln!("{}: {}", file.display(), reported(&contents));
    }
    if let Some(bucket) = bucket {
        let name = upload(&bucket, &file).await?;
        outln!("{name} in {}: {}", bucket.base(), reported(&contents));
    }
    Ok(())
}

/// Stores a snapshot in a bucket, under the name of its file, which is returned.
///
/// # Errors
/// The bucket does not take it.
pub async fn upload(bucket: &S3Bucket, file: &Path) -> anyhow::Result<String> {
    let name = file.file_name().and_then(|name| name.to_str()).context("the name of the snapshot is not text")?;
    bucket.put(name, file).await.with_context(|| format!("put {name} into {}", bucket.base()))?;
    Ok(name.to_owned())
}

/// Saves a snapshot of the server of `client`, which runs on this machine with this data directory, into a new file or
/// into a directory.
///
/// # Errors
/// The server does not answer, or the file cannot be written.
pub async fn save(
    client: &Client,
    data_dir: &Path,
    target: &Path,
    passphrase: Option<Arc<Passphrase>>,
) -> anyhow::Result<SavedBundle> {
    let answer = client.call(Method::POST, PATH, "application/json", Bytes::new()).await;
    let answer = token::reaching(data_dir, answer.map_err(Into::into))?;
    let saved: Saved = kelson_meta::from_json(&answer).context("read the server's answer")?;
    let (data_dir, target) = (data_dir.to_owned(), target.to_owned());
    WRITING.run(move || write_saved(&saved.path, &data_dir, &target, passphrase.as_deref())).await?
}

/// Makes a bundle of the store that a server has saved, and deletes that.
fn write_saved(
    saved: &Path,
    data_dir: &Path,
    target: &Path,
    passphrase: Option<&Passphrase>,
) -> anyhow::Result<SavedBundle> {
    // The file is verified by reading it again, since the server's answer only says what it wrote.
    let written = verify(saved, saved).and_then(|contents| {
        let file = match target.is_dir() {
            true => target.join(snapshot_list::name(Timestamp::now(), contents.revision)),
            false => target.to_owned(),
        };
        write(data_dir, &saved.join(STORE_FILE), &contents, passphrase, &file)?;
        Ok(SavedBundle { file, contents })
    });
    fs::remove_dir_all(saved).with_context(|| format!("remove {}", saved.display()))?;
    written
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
    let has_member = place::has_member(data_dir);
    if has_member && (objects_only || is_store_file(file)?) {
        bail!(
            "the objects of {} are in etcd; restore the whole snapshot, or into an empty data directory",
            data_dir.display()
        );
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
    if has_member {
        // An empty part takes the place of the member's directory, which is kept like all that is replaced.
        make_private_dir(&staged.path().join(MEMBER)).context("restore without the etcd member")?;
    }
    for replaced in staged.install(data_dir, Timestamp::now())? {
        outln!("the previous data is in {}", replaced.display());
    }
    outln!("restored: {}", reported(&contents));
    if has_member {
        out!("{WITHOUT_MEMBER}");
    }
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
fn restore_store(fresh: TempDir, file: &Path, data_dir: &Path) -> anyhow::Result<()> {
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
