//! Records how far the write-ahead log has been written, outside of the log: in a file of one line that is overwritten after each
//! commit and not synced for that. If the log is shorter than recorded at the next start, commits are lost and the store is not opened.
//!
//! After `kill -9` the record is exact, since the kernel has it. After a power cut it may be older than the log, by as long as the
//! kernel delays writing pages (usually half a minute). It therefore also holds the last synced commit, which must be in the log.
#![allow(clippy::disallowed_methods, reason = "blocking: on the committer's own thread; opened in the lane for files")]

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use kelson_platform::files;

use super::EngineError;
use super::wal::{self, Extent, RecoveredLog, SALTS_AT, Salts};

/// The file's name is the name of the database with this suffix.
const SUFFIX: &str = "-position";
const TITLE: &str = "kelson-store-position-1";
/// The constant length of the file: one sector, which disks write completely or not at all.
const LINE_BYTES: usize = 512;
/// The identifier of the boot on a system that has none.
const NO_BOOT: &str = "-";

/// The recorded position of the write-ahead log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LogPosition {
    /// The identifier of the boot in which it was recorded.
    boot: String,
    /// The end of the last commit.
    appended: Extent,
    /// The end of the last commit that was synced.
    synced: Extent,
    /// Whether the database also has everything that is in the log, synced.
    carried: bool,
}

impl LogPosition {
    fn line(&self) -> String {
        let salts = |salts: Salts| u64::from_be_bytes(salts);
        let (appended, synced) = (self.appended, self.synced);
        let text = format!(
            "{TITLE} {} {:016x} {} {:016x} {} {}",
            self.boot,
            salts(appended.salts),
            appended.frames,
            salts(synced.salts),
            synced.frames,
            u8::from(self.carried)
        );
        let sum = crc32fast::hash(text.as_bytes());
        format!("{:<width$}\n", format!("{text} {sum:08x}"), width = LINE_BYTES - 1)
    }

    fn parse(line: &str) -> Option<Self> {
        let (text, sum) = line.trim_end().rsplit_once(' ')?;
        if u32::from_str_radix(sum, 16).ok()? != crc32fast::hash(text.as_bytes()) {
            return None;
        }
        let mut words = text.strip_prefix(TITLE)?.strip_prefix(' ')?.split(' ');
        let boot = words.next()?.to_owned();
        let mut extent = || {
            let salts = u64::from_str_radix(words.next()?, 16).ok()?.to_be_bytes();
            Some(Extent { salts, frames: words.next()?.parse().ok()? })
        };
        let (appended, synced) = (extent()?, extent()?);
        let carried = words.next()? == "1";
        words.next().is_none().then_some(Self { boot, appended, synced, carried })
    }

    /// Reads the position recorded beside a database. Returns `None` if there is none or it is damaged.
    fn read(database: &Path) -> io::Result<Option<Self>> {
        let mut line = String::new();
        match File::open(beside(database, SUFFIX)).and_then(|mut file| file.read_to_string(&mut line)) {
            Ok(_) => Ok(Self::parse(&line)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The path of a file beside the database.
pub(super) fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(super) fn log_of(database: &Path) -> PathBuf {
    beside(database, "-wal")
}

fn boot() -> String {
    kelson_platform::process::boot_id().filter(|id| !id.contains(' ')).unwrap_or_else(|| NO_BOOT.to_owned())
}

fn unreadable(source: io::Error) -> EngineError {
    EngineError::Io { context: "read the store's files", source }
}

/// Checks, before a database is created, that there was none before: no log and no position file may remain.
///
/// # Errors
/// Returns [`EngineError::Corrupt`] if the database is missing or empty although files that belong to it remain.
pub(super) fn check_database(database: &Path) -> Result<(), EngineError> {
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |about| about.len());
    if length(database) > 0 {
        return Ok(());
    }
    let left = [log_of(database), beside(database, SUFFIX)].into_iter().find(|path| length(path) > 0);
    let Some(left) = left else { return Ok(()) };
    let reason = format!("it is missing or empty, but {} shows that it was written", left.display());
    Err(EngineError::Corrupt { path: database.to_path_buf(), reason })
}

/// Checks that the log is as long as recorded. Nothing may have been written since it was opened.
///
/// # Errors
/// Returns [`EngineError::Corrupt`] if commits are missing.
pub(super) fn check_log(database: &Path) -> Result<(), EngineError> {
    let Some(known) = LogPosition::read(database).map_err(unreadable)? else { return Ok(()) };
    let here = boot();
    let exact = known.boot == here && here != NO_BOOT;
    let wanted = if exact { known.appended } else { known.synced };
    if wanted.frames == 0 {
        return Ok(());
    }
    let path = log_of(database);
    let reason = match wal::read(&path).map_err(unreadable)? {
        RecoveredLog::Absent if known.carried => return Ok(()),
        RecoveredLog::Absent => format!("it is missing or empty, but had {} pages", wanted.frames),
        RecoveredLog::NoHeader => "checksum mismatch in its header".to_owned(),
        RecoveredLog::Frames(found) if found.salts == wanted.salts && found.frames < wanted.frames => {
            format!("checksum mismatch in page {} of {}", found.frames + 1, wanted.frames)
        }
        // The log was restarted since, which happens when the database has all of it.
        RecoveredLog::Frames(_) => return Ok(()),
    };
    let note = beside(database, SUFFIX);
    let reason = format!(
        "{reason}; acknowledged writes are lost. Restore a snapshot, or remove {} to start without them",
        note.display()
    );
    Err(EngineError::Corrupt { path, reason })
}

/// The file in which the position of the log is recorded after each commit.
pub(super) struct PositionFile {
    file: File,
    path: PathBuf,
    log_path: PathBuf,
    log: Option<File>,
    boot: String,
    synced: Extent,
    failing: bool,
}

impl PositionFile {
    /// Opens the position file of a database, or creates an empty one.
    ///
    /// # Errors
    /// Returns the operating system's error.
    pub fn open(database: &Path) -> io::Result<Self> {
        let path = beside(database, SUFFIX);
        let known = LogPosition::read(database)?;
        let mut file = files::private(OpenOptions::new().write(true).create(true).truncate(false)).open(&path)?;
        let boot = boot();
        if known.is_none() {
            let nothing = Extent::default();
            let position = LogPosition { boot: boot.clone(), appended: nothing, synced: nothing, carried: false };
            file.set_len(0)?;
            file.write_all(position.line().as_bytes())?;
            file.sync_all()?;
        }
        let synced = known.map_or_else(Extent::default, |known| known.synced);
        Ok(Self { file, path, log_path: log_of(database), log: None, boot, synced, failing: false })
    }

    /// Records that the log has `frames` pages. With `synced` all of them are on the disk, and with `carried` all are in the database.
    /// An error is only logged: the recorded position may be older than the log.
    pub fn note(&mut self, frames: u32, synced: bool, carried: bool) {
        match self.write(frames, synced, carried) {
            Ok(()) => self.failing = false,
            Err(error) if !self.failing => {
                tracing::warn!(%error, file = %self.path.display(), "recording the position of the write-ahead log failed");
                self.failing = true;
            }
            Err(_) => {}
        }
    }

    fn write(&mut self, frames: u32, synced: bool, carried: bool) -> io::Result<()> {
        let appended = Extent { salts: if frames == 0 { Salts::default() } else { self.salts()? }, frames };
        if synced {
            self.synced = appended;
        }
        let position = LogPosition { boot: self.boot.clone(), appended, synced: self.synced, carried };
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(position.line().as_bytes())
    }

    /// The current salts of the log.
    fn salts(&mut self) -> io::Result<Salts> {
        let mut log = match self.log.take() {
            Some(log) => log,
            None => File::open(&self.log_path)?,
        };
        let mut salts = Salts::default();
        log.seek(SeekFrom::Start(SALTS_AT))?;
        log.read_exact(&mut salts)?;
        self.log = Some(log);
        Ok(salts)
    }

    /// Makes the recorded position survive a power cut.
    pub fn sync(&self) {
        if let Err(error) = self.file.sync_data() {
            tracing::warn!(%error, file = %self.path.display(), "syncing the position of the write-ahead log failed");
        }
    }

    /// Removes the file, when the database is all that is left of the store.
    ///
    /// # Errors
    /// Returns the operating system's error.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_position_is_not_read() {
        let position = LogPosition {
            boot: "8f2c1f0e-6c1e-4b8a-9d8e-0123456789ab".to_owned(),
            appended: Extent { salts: [1, 2, 3, 4, 5, 6, 7, 8], frames: u32::MAX },
            synced: Extent { salts: [0xff; 8], frames: 7 },
            carried: true,
        };
        let line = position.line();
        assert_eq!((line.len(), LogPosition::parse(&line)), (LINE_BYTES, Some(position)));
        let used = line.trim_end().len();
        for at in 0..used {
            let mut flipped = line.clone().into_bytes();
            flipped[at] ^= 1;
            let read = String::from_utf8(flipped).ok().and_then(|line| LogPosition::parse(&line));
            assert_eq!(read, None, "byte {at}");
            assert_eq!(LogPosition::parse(&line[..at]), None, "cut at {at}");
        }
    }
}
