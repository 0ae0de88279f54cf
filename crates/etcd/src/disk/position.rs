//! Stores the position up to which logs were written, in a small file that is overwritten after each commit and never
//! synced for that. A torn frame at the end of the last log is a commit that was not acknowledged, unless the position
//! is behind it: then it was acknowledged, and is damaged.
//!
//! After `kill -9` the position is exact, since the kernel has it. After a power failure it may be older than the log
//! but not newer, since it is stored after the commit is synced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use kelson_platform::files::private;

const FILE: &str = "position";
const TITLE: &str = "kelson-etcd-position-1";
/// The fixed size of the file: one sector, which disks write atomically.
const LINE_BYTES: usize = 512;
/// The boot ID when the system does not have one.
const NO_BOOT: &str = "-";

/// The end of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// The number of the log.
    pub log: u64,
    /// The size up to the end of the last commit, in bytes.
    pub bytes: u64,
}

/// The content of the position file.
#[derive(Debug, PartialEq, Eq)]
struct PositionRecord {
    boot: String,
    /// Whether the position had been synced in the log.
    synced: bool,
    /// The first log that is closed by a record when another one follows.
    closed_since: u64,
    at: Position,
}

impl PositionRecord {
    fn line(&self) -> String {
        let text = format!(
            "{TITLE} {} {} {} {} {}",
            self.boot,
            u8::from(self.synced),
            self.closed_since,
            self.at.log,
            self.at.bytes
        );
        let sum = crc32fast::hash(text.as_bytes());
        format!("{:<width$}\n", format!("{text} {sum:08x}"), width = LINE_BYTES - 1)
    }

    fn parse(line: &str) -> Option<Self> {
        let (text, sum) = line.trim_end().rsplit_once(' ')?;
        if u32::from_str_radix(sum, 16).ok()? != crc32fast::hash(text.as_bytes()) {
            return None;
        }
        let words: Vec<&str> = text.split(' ').collect();
        let [TITLE, boot, synced, closed_since, log, bytes] = words[..] else { return None };
        let at = Position { log: log.parse().ok()?, bytes: bytes.parse().ok()? };
        let closed_since = closed_since.parse().ok()?;
        Some(Self { boot: boot.to_owned(), synced: synced == "1", closed_since, at })
    }
}

fn boot() -> String {
    kelson_platform::process::boot_id().filter(|id| !id.contains(' ')).unwrap_or_else(|| NO_BOOT.to_owned())
}

/// The requirements of the position file for the logs.
#[derive(Debug)]
pub(super) struct Demands {
    /// The position file.
    pub path: PathBuf,
    /// Logs from this one on end with a closing record if others follow.
    pub closed_since: u64,
    /// The position that the logs must reach. `None` if it is not known.
    pub reached: Option<Position>,
}

impl Demands {
    /// Returns the number of acknowledged bytes of a log.
    pub fn bytes_of(&self, log: u64) -> u64 {
        self.reached.filter(|at| at.log == log).map_or(0, |at| at.bytes)
    }
}

/// Reads the position file of a directory. Without one nothing is required.
///
/// # Errors
/// An I/O error.
pub(super) fn read(dir: &Path) -> io::Result<Demands> {
    let path = dir.join(FILE);
    let Some(PositionRecord { boot: noted_in, synced, closed_since, at }) = noted(&path)? else {
        return Ok(Demands { path, closed_since: u64::MAX, reached: None });
    };
    let here = boot();
    // Unsynced data survives as long as the kernel runs.
    let holds = synced || noted_in == here && here != NO_BOOT;
    Ok(Demands { path, closed_since, reached: holds.then_some(at) })
}

fn noted(path: &Path) -> io::Result<Option<PositionRecord>> {
    match fs::read(path) {
        Ok(line) => Ok(String::from_utf8(line).ok().and_then(|line| PositionRecord::parse(&line))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file with the position of the newest log, updated after each commit.
#[derive(Debug)]
pub(super) struct PositionFile {
    file: File,
    path: PathBuf,
    boot: String,
    synced: bool,
    closed_since: u64,
    failing: bool,
}

impl PositionFile {
    /// Opens or creates the position file of a directory whose last log is `log`. `synced`: commits are synced before
    /// their position is stored.
    ///
    /// # Errors
    /// An I/O error.
    pub fn open(dir: &Path, log: u64, synced: bool) -> io::Result<Self> {
        let path = dir.join(FILE);
        let closed_since = noted(&path)?.map_or(log, |noted| noted.closed_since);
        let file = private(OpenOptions::new().write(true).create(true).truncate(false)).open(&path)?;
        Ok(Self { file, path, boot: boot(), synced, closed_since, failing: false })
    }

    /// Stores the end of the last commit. An error is logged: the position is then older than the log, which is
    /// allowed.
    pub fn note(&mut self, at: Position) {
        let Self { boot, synced, closed_since, .. } = &*self;
        let line = PositionRecord { boot: boot.clone(), synced: *synced, closed_since: *closed_since, at }.line();
        let noted = self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.write_all(line.as_bytes()));
        match noted {
            Ok(()) => self.failing = false,
            Err(error) if !self.failing => {
                tracing::warn!(%error, file = %self.path.display(), "recording the position of the log failed");
                self.failing = true;
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written_or_not_at_all() {
        let at = Position { log: 7, bytes: 123_456 };
        let noted = PositionRecord {
            boot: "8f2c1f0e-6c1e-4b8a-9d8e-0123456789ab".to_owned(),
            synced: true,
            closed_since: 3,
            at,
        };
        let line = noted.line();
        assert_eq!((line.len(), PositionRecord::parse(&line)), (LINE_BYTES, Some(noted)));
        for bit in 0..line.trim_end().len() {
            let mut flipped = line.clone().into_bytes();
            flipped[bit] ^= 1;
            assert_eq!(
                String::from_utf8(flipped).ok().and_then(|line| PositionRecord::parse(&line)),
                None,
                "byte {bit}"
            );
        }
    }

    #[test]
    fn what_was_not_synced_holds_in_the_same_boot_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = Position { log: 1, bytes: 2 };
        let read = || read(dir.path()).unwrap().reached;
        assert_eq!(read(), None);
        PositionFile::open(dir.path(), 1, false).unwrap().note(at);
        assert_eq!(read(), (boot() != NO_BOOT).then_some(at));
        let other = |synced| PositionRecord { boot: "another".to_owned(), synced, closed_since: 1, at }.line();
        fs::write(dir.path().join(FILE), other(false)).unwrap();
        assert_eq!(read(), None);
        fs::write(dir.path().join(FILE), other(true)).unwrap();
        assert_eq!(read(), Some(at));
    }
}
