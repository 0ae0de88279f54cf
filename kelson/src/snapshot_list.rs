//! Snapshots in a directory or a bucket, by the names that `kelson snapshot save DIR` gives.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: by a command that does nothing else, or in the lane of snapshots"
)]
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use kelson_s3::S3Bucket;

const PREFIX: &str = "kelson-";
const EXTENSION: &str = ".bundle";

/// A snapshot in a directory or a bucket.
#[derive(Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// The name of the file, with the time and the revision.
    pub name: String,
    /// The revision of its objects.
    pub revision: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Returns the name of a snapshot: the time in UTC, so that names sort by age, and the revision.
pub fn name(at: Timestamp, revision: u64) -> String {
    let at = at.to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%SZ");
    format!("{PREFIX}{at}-{revision}{EXTENSION}")
}

/// Returns time and revision of a name that [`name`] returns.
fn parse(name: &str) -> Option<(&str, u64)> {
    let (time, revision) = name.strip_prefix(PREFIX)?.strip_suffix(EXTENSION)?.split_once('-')?;
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let (date, clock) = time.strip_suffix('Z')?.split_once('T')?;
    let is_time = date.len() == 8 && clock.len() == 6 && digits(date) && digits(clock);
    (is_time && digits(revision)).then_some((time, revision.parse().ok()?))
}

/// Returns the snapshots among files, the newest first.
fn snapshots(files: impl IntoIterator<Item = (String, u64)>) -> Vec<SnapshotFile> {
    let of = |(name, bytes): (String, u64)| {
        let (_, revision) = parse(&name)?;
        Some(SnapshotFile { revision, bytes, name })
    };
    let mut found: Vec<SnapshotFile> = files.into_iter().filter_map(of).collect();
    found.sort_by(|a, b| (parse(&b.name), &b.name).cmp(&(parse(&a.name), &a.name)));
    found
}

/// Returns the snapshots of a directory, the newest first.
///
/// # Errors
/// The directory cannot be read.
pub fn of_dir(dir: &Path) -> anyhow::Result<Vec<SnapshotFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.is_file() {
            files.push((entry.file_name().to_string_lossy().into_owned(), about.len()));
        }
    }
    Ok(snapshots(files))
}

/// Returns the snapshots of a bucket, the newest first.
///
/// # Errors
/// The bucket cannot be read.
pub async fn of_bucket(bucket: &S3Bucket) -> anyhow::Result<Vec<SnapshotFile>> {
    let files = bucket.list().await.with_context(|| format!("list {}", bucket.base()))?;
    Ok(snapshots(files.into_iter().map(|file| (file.name, file.bytes))))
}

/// Returns the table of snapshots that `kelson snapshot list` prints.
pub fn table(files: &[SnapshotFile]) -> String {
    let mut out = format!("{:<44} {:>12} {:>14}\n", "NAME", "REVISION", "BYTES");
    for file in files {
        out.push_str(&format!("{:<44} {:>12} {:>14}\n", file.name, file.revision, file.bytes));
    }
    out
}

/// Deletes all snapshots of a directory but the newest ones, and returns the names of those that were deleted.
///
/// # Errors
/// The directory cannot be read, or a file cannot be deleted.
pub fn prune_dir(dir: &Path, keep: u32) -> anyhow::Result<Vec<String>> {
    let mut deleted = Vec::new();
    for file in of_dir(dir)?.into_iter().skip(keep as usize) {
        let path = dir.join(&file.name);
        fs::remove_file(&path).with_context(|| format!("delete {}", path.display()))?;
        deleted.push(file.name);
    }
    Ok(deleted)
}

/// Deletes all snapshots of a bucket but the newest ones, and returns the names of those that were deleted.
///
/// # Errors
/// The bucket cannot be read, or a file cannot be deleted.
pub async fn prune_bucket(bucket: &S3Bucket, keep: u32) -> anyhow::Result<Vec<String>> {
    let mut deleted = Vec::new();
    for file in of_bucket(bucket).await?.into_iter().skip(keep as usize) {
        bucket.delete(&file.name).await.with_context(|| format!("delete {} in {}", file.name, bucket.base()))?;
        deleted.push(file.name);
    }
    Ok(deleted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_snapshots_stay_and_so_do_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let at = |second: i64| Timestamp::from_second(1_780_000_000 + second).unwrap();
        for (second, revision) in [(0, 9), (90_000, 10), (180_000, 7)] {
            fs::write(dir.path().join(name(at(second), revision)), "x").unwrap();
        }
        let others = ["kelson-monday.bundle", "kelson-20260101T000000Z-x.bundle", "notes"];
        for other in others {
            fs::write(dir.path().join(other), "x").unwrap();
        }
        let revisions = || of_dir(dir.path()).unwrap().iter().map(|f| f.revision).collect::<Vec<u64>>();
        assert_eq!(revisions(), [7, 10, 9], "by time, not by revision");
        assert_eq!(table(&of_dir(dir.path()).unwrap()).lines().count(), 4);
        assert!(prune_dir(dir.path(), 5).unwrap().is_empty());
        assert_eq!(prune_dir(dir.path(), 2).unwrap(), [name(at(0), 9)]);
        assert!(prune_dir(dir.path(), 2).unwrap().is_empty());
        assert_eq!(revisions(), [7, 10]);
        assert!(others.iter().all(|other| dir.path().join(other).exists()));
    }
}
