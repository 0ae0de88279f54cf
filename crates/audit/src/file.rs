//! A log file with rotation. When the file reaches its maximum size, it is renamed with the current time, and a new
//! file is created. Old files are compressed, and removed by number and age. The names match upstream's logger:
//! `audit-2026-01-02T03-04-05.678.log[.gz]`. All functions block.
#![allow(
    clippy::disallowed_methods,
    reason = "blocking: read at start; written by a thread of its own, or in the lane for files"
)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use kelson_platform::files;

/// The format of the time in the name of a rotated file.
const STAMP: &str = "%Y-%m-%dT%H-%M-%S.%3f";
const COMPRESSED: &str = ".gz";

/// The size at which files are rotated, and how long they are kept.
#[derive(Debug, Clone, Copy)]
pub struct Rotation {
    /// The maximum size of a file in bytes, or `None` for no limit.
    pub bytes_max: Option<u64>,
    /// The maximum number of rotated files; 0 means no limit.
    pub backups_max: usize,
    /// The maximum age of rotated files.
    pub age_max: Option<SignedDuration>,
    /// Whether rotated files are compressed.
    pub compress: bool,
}

/// The current log file.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    rotation: Rotation,
    open: Option<(File, u64)>,
}

impl LogFile {
    /// Checks that the file is writable, and creates it if it does not exist.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn new(path: &Path, rotation: Rotation) -> io::Result<Self> {
        let mut file = Self { path: path.to_owned(), rotation, open: None };
        file.opened()?;
        Ok(file)
    }

    /// Appends whole lines. Returns whether the file was rotated before.
    ///
    /// # Errors
    /// Returns an I/O error. The next write opens the file again.
    pub fn write(&mut self, lines: &[u8], now: Timestamp) -> io::Result<bool> {
        let size = self.opened()?.1;
        let grown = size.saturating_add(lines.len() as u64);
        let full = size > 0 && self.rotation.bytes_max.is_some_and(|max| grown > max);
        if full {
            self.open = None;
            self.rotate(now)?;
        }
        let (file, size) = self.opened()?;
        match file.write_all(lines) {
            Ok(()) => *size = size.saturating_add(lines.len() as u64),
            Err(error) => {
                self.open = None;
                return Err(error);
            }
        }
        Ok(full)
    }

    fn opened(&mut self) -> io::Result<&mut (File, u64)> {
        if self.open.is_none() {
            if let Some(dir) = self.path.parent().filter(|d| !d.as_os_str().is_empty()) {
                files::make_private_dir(dir)?;
            }
            let file = files::private(OpenOptions::new().create(true).append(true)).open(&self.path)?;
            let size = file.metadata()?.len();
            self.open = Some((file, size));
        }
        self.open.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rotate(&self, now: Timestamp) -> io::Result<()> {
        let mut at = now;
        let to = loop {
            let to = self.path.with_file_name(backup_name(&self.path, at));
            let mut compressed = to.clone().into_os_string();
            compressed.push(COMPRESSED);
            if !to.exists() && !Path::new(&compressed).exists() {
                break to;
            }
            at = at.checked_add(SignedDuration::from_millis(1)).map_err(io::Error::other)?;
        };
        fs::rename(&self.path, to)
    }
}

/// Returns the name of a rotated file: `audit.log` becomes `audit-TIME.log`.
fn backup_name(path: &Path, at: Timestamp) -> String {
    let (prefix, suffix) = affixes(path);
    format!("{prefix}{}{suffix}", at.strftime(STAMP))
}

fn affixes(path: &Path) -> (String, String) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let suffix = path.extension().map_or_else(String::new, |e| format!(".{}", e.to_string_lossy()));
    (format!("{stem}-"), suffix)
}

/// Returns the rotated files, newest first.
fn backups(path: &Path) -> io::Result<Vec<(Timestamp, PathBuf)>> {
    let (prefix, suffix) = affixes(path);
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let plain = name.strip_suffix(COMPRESSED).unwrap_or(&name);
        let stamp = plain.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(&suffix));
        let time = stamp.and_then(|s| DateTime::strptime(STAMP, s).ok());
        if let Some(at) = time.and_then(|t| t.to_zoned(TimeZone::UTC).ok()) {
            found.push((at.timestamp(), entry.path()));
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    Ok(found)
}

/// Removes rotated files that are too many or too old, and compresses the others if that is enabled. Continues after an
/// error, and returns the first.
///
/// # Errors
/// Returns an I/O error.
pub fn tidy(path: &Path, rotation: &Rotation, now: Timestamp) -> io::Result<()> {
    let mut first = Ok(());
    for (i, (at, file)) in backups(path)?.into_iter().enumerate() {
        let many = rotation.backups_max > 0 && i >= rotation.backups_max;
        let old = rotation.age_max.is_some_and(|max| now.duration_since(at) > max);
        let done = if many || old {
            fs::remove_file(&file)
        } else if rotation.compress && file.extension().is_none_or(|e| e != "gz") {
            compress(&file)
        } else {
            Ok(())
        };
        if first.is_ok() {
            first = done;
        }
    }
    first
}

/// Compresses a file. The compressed file has a temporary name until it is complete.
fn compress(file: &Path) -> io::Result<()> {
    let with = |suffix: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let (partial, whole) = (with(".partial"), with(COMPRESSED));
    let mut from = File::open(file)?;
    let about = from.metadata()?;
    let to = files::open_like(OpenOptions::new().create(true).write(true).truncate(true), &about).open(&partial)?;
    let mut encoder = GzEncoder::new(to, Compression::default());
    io::copy(&mut from, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    fs::rename(&partial, &whole)?;
    fs::remove_file(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    const ROTATION: Rotation = Rotation { bytes_max: Some(10), backups_max: 2, age_max: None, compress: false };

    #[test]
    fn a_full_file_is_rotated_and_the_oldest_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logs/audit.log");
        let mut now: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let mut file = LogFile::new(&path, ROTATION).unwrap();
        for n in 0..5 {
            assert_eq!(file.write(format!("line {n}\n").as_bytes(), now).unwrap(), n > 0);
            tidy(&path, &ROTATION, now).unwrap();
            now += SignedDuration::from_secs(1);
        }
        let expected = ["audit-2026-01-02T03-04-08.678.log", "audit-2026-01-02T03-04-09.678.log", "audit.log"];
        assert_eq!(names(path.parent().unwrap()), expected);
        assert_eq!(fs::read_to_string(&path).unwrap(), "line 4\n");
        assert_eq!(files::open_to_others(&path), None);
        // A second file within the same millisecond gets another name.
        let again = file.write(b"line 5\n", "2026-01-02T03:04:09.678Z".parse().unwrap());
        assert!(again.unwrap());
        assert!(names(path.parent().unwrap()).contains(&"audit-2026-01-02T03-04-09.679.log".to_owned()));
    }

    #[test]
    fn what_is_there_already_counts_and_a_lost_directory_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/audit.log");
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(&path, "12345678").unwrap();
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut file = LogFile::new(&path, ROTATION).unwrap();
        assert!(file.write(b"abc\n", now).unwrap(), "twelve bytes are more than ten");
        assert!(!LogFile::new(&path, ROTATION).unwrap().write(b"abc\n", now).unwrap());
        fs::remove_dir_all(dir.path().join("a")).unwrap();
        assert!(LogFile::new(&path, ROTATION).is_ok());
    }

    #[test]
    fn old_files_are_compressed_and_go_by_their_age() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let day = SignedDuration::from_hours(24);
        let rotation = Rotation { bytes_max: Some(1), backups_max: 0, age_max: Some(day), compress: true };
        let now: Timestamp = "2026-01-10T00:00:00Z".parse().unwrap();
        let mut file = LogFile::new(&path, rotation).unwrap();
        for (text, at) in [("one\n", now), ("two\n", now - day - day), ("three\n", now)] {
            file.write(text.as_bytes(), at).unwrap();
        }
        fs::write(dir.path().join("audit-notes.log"), "not ours").unwrap();
        tidy(&path, &rotation, now).unwrap();
        assert_eq!(names(dir.path()), ["audit-2026-01-10T00-00-00.000.log.gz", "audit-notes.log", "audit.log"]);
        let compressed = File::open(dir.path().join("audit-2026-01-10T00-00-00.000.log.gz")).unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(compressed).read_to_string(&mut text).unwrap();
        assert_eq!(text, "two\n");
    }
}
