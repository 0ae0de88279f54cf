//! Disk space that is reserved for the case of a full disk: a file that is removed then, so that objects can be deleted.
#![allow(clippy::disallowed_methods, reason = "blocking: on the committer's own thread; opened in the lane for files")]

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use kelson_platform::files;

const FILE: &str = "ballast";
/// Enough space for the batches of deletions until the write-ahead log is checkpointed.
const BYTES_MAX: u64 = 16 << 20;
/// The reserve is at most the free space divided by this number.
const FREE_PART: u64 = 16;
/// A smaller reserve would not help.
const BYTES_MIN: u64 = 64 << 10;

/// The reserve file. An engine without a path has none.
#[derive(Debug, Default)]
pub(super) struct Ballast {
    path: Option<PathBuf>,
    /// The number of bytes that were released. The file is created again when twice as much space is free.
    given_up: Option<u64>,
}

impl Ballast {
    /// The reserve for a store's directory. The file is not created yet.
    pub fn of(dir: &Path) -> Self {
        Self { path: Some(dir.join(FILE)), given_up: None }
    }

    /// Creates the file if it is missing and the disk has enough space. Returns `false` if there is no file afterwards. An error is only
    /// logged, since the store can work without the reserve.
    pub fn keep(&mut self) -> bool {
        let Some(path) = &self.path else { return false };
        if path.exists() {
            return true;
        }
        let free = path.parent().and_then(|dir| files::free_bytes(dir).ok()).unwrap_or(0);
        let bytes = match self.given_up {
            Some(bytes) => bytes,
            None => (free / FREE_PART).min(BYTES_MAX),
        };
        if bytes < BYTES_MIN || free < bytes * 2 {
            return false;
        }
        match make(path, bytes) {
            Ok(()) => {
                self.given_up = None;
                true
            }
            Err(error) => {
                tracing::debug!(%error, "reserving disk space for deletions on a full disk failed");
                let _ = std::fs::remove_file(path);
                false
            }
        }
    }

    /// Removes the file. Returns `false` if there was none.
    pub fn give_up(&mut self) -> bool {
        let Some(path) = &self.path else { return false };
        let bytes = std::fs::metadata(path).map_or(0, |about| about.len());
        match std::fs::remove_file(path) {
            Ok(()) => {
                self.given_up = Some(bytes);
                true
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%error, file = %path.display(), "removing the file that reserves disk space failed");
                }
                false
            }
        }
    }

    /// Whether the file was removed and could not be created again.
    pub fn is_given_up(&self) -> bool {
        self.given_up.is_some()
    }
}

fn make(path: &Path, bytes: u64) -> io::Result<()> {
    let file = files::private(OpenOptions::new().write(true).create_new(true)).open(path)?;
    files::reserve(&file, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_kept_and_given_up_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut ballast = Ballast::of(dir.path());
        assert!(!ballast.give_up() && ballast.keep() && ballast.keep());
        let about = std::fs::metadata(dir.path().join(FILE)).unwrap();
        assert!((BYTES_MIN..=BYTES_MAX).contains(&about.len()));
        assert_eq!((ballast.give_up(), ballast.give_up()), (true, false));
        assert!(ballast.is_given_up() && ballast.keep() && !ballast.is_given_up());
        assert_eq!(std::fs::metadata(dir.path().join(FILE)).unwrap().len(), about.len(), "it is kept again");
        ballast.given_up = Some(u64::MAX / 4);
        std::fs::remove_file(dir.path().join(FILE)).unwrap();
        assert!(!ballast.keep(), "no disk has so much room");
        assert!(!Ballast::default().keep() && !Ballast::default().give_up());
    }
}
