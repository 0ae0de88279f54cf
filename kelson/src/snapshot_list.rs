//! `kelson snapshot list` and `prune`: snapshots in a directory, by the names that `kelson snapshot save DIR` gives.
#![allow(clippy::disallowed_methods, reason = "blocking: by a command that does nothing else")]
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use jiff::Timestamp;
use jiff::tz::TimeZone;

const PREFIX: &str = "kelson-";
const EXTENSION: &str = ".bundle";

/// A snapshot in a directory.
struct SnapshotFile {
    name: String,
    revision: u64,
    bytes: u64,
    path: PathBuf,
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

/// Returns the snapshots of a directory, the newest first. Other files are left out.
fn read(dir: &Path) -> anyhow::Result<Vec<SnapshotFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let about = entry.metadata()?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some((_, revision)) = parse(&name)
            && about.is_file()
        {
            files.push(SnapshotFile { revision, bytes: about.len(), path: entry.path(), name });
        }
    }
    files.sort_by(|a, b| (parse(&b.name), &b.name).cmp(&(parse(&a.name), &a.name)));
    Ok(files)
}

/// Prints the snapshots of a directory.
///
/// # Errors
/// The directory cannot be read.
pub fn list(dir: &Path) -> anyhow::Result<()> {
    outln!("{:<44} {:>12} {:>14}", "NAME", "REVISION", "BYTES");
    for file in read(dir)? {
        outln!("{:<44} {:>12} {:>14}", file.name, file.revision, file.bytes);
    }
    Ok(())
}

/// Deletes all snapshots of a directory but the newest ones.
///
/// # Errors
/// The directory cannot be read, or a file cannot be deleted.
pub fn prune(dir: &Path, keep: u32) -> anyhow::Result<()> {
    for file in read(dir)?.into_iter().skip(keep as usize) {
        fs::remove_file(&file.path).with_context(|| format!("delete {}", file.path.display()))?;
        outln!("deleted {}", file.path.display());
    }
    Ok(())
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
        let revisions: Vec<u64> = read(dir.path()).unwrap().iter().map(|f| f.revision).collect();
        assert_eq!(revisions, [7, 10, 9], "by time, not by revision");
        list(dir.path()).unwrap();
        prune(dir.path(), 5).unwrap();
        assert_eq!(read(dir.path()).unwrap().len(), 3);
        prune(dir.path(), 2).unwrap();
        prune(dir.path(), 2).unwrap();
        let revisions: Vec<u64> = read(dir.path()).unwrap().iter().map(|f| f.revision).collect();
        assert_eq!(revisions, [7, 10]);
        assert!(others.iter().all(|other| dir.path().join(other).exists()));
    }
}
