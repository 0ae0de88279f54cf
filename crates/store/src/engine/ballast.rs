//! Room that is kept for the day on which the disk is full: a file that is removed then, so that objects can be deleted.
#![allow(clippy::disallowed_methods, reason = "blocking: on the committer's own thread; opened in the lane for files")]

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use kelson_platform::files;

const FILE: &str = "ballast";
/// Enough for as many batches of deletions as it takes to carry the write-ahead log over.
const BYTES_MAX: u64 = 16 << 20;
/// No more than this part of what is free is kept.
const FREE_PART: u64 = 16;
/// Less than this helps nobody.
const BYTES_MIN: u64 = 64 << 10;

/// The file. Without a path there is none.
#[derive(Debug, Default)]
pub(super) struct Ballast {
    path: Option<PathBuf>,
    /// What was given up. It is kept again as soon as twice as much is free.
    given_up: Option<u64>,
}

impl Ballast {
    /// The ballast of a store's directory, which is not made yet.
    pub fn of(dir: &Path) -> Self {
        Self { path: Some(dir.join(FILE)), given_up: None }
    }

    /// Makes the file if it is not there and the disk has room; `false` when there is none then. A fault is no reason not to serve.
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

    /// Removes the file; `false` when there is none.
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

    /// Whether it was given up and could not be kept again.
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
