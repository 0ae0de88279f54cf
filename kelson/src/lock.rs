//! One process per data directory: a lock that the kernel releases when its holder ends in any way.
#![allow(clippy::disallowed_methods, reason = "blocking: at start, or by a command that does nothing else")]

use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use kelson_platform::files;

/// The file of the lock in a data directory, which contains the holder's process ID.
pub const LOCK_FILE: &str = "kelson.lock";

/// Held as long as a process works with a data directory.
pub struct DataDirLock {
    file: File,
}

impl DataDirLock {
    /// Creates the directory for its owner only if it does not exist, and takes the lock.
    ///
    /// # Errors
    /// As of [`DataDirLock::take`], and when the directory cannot be created.
    pub fn make(dir: &Path) -> anyhow::Result<Self> {
        files::make_private_dir(dir).with_context(|| format!("data directory {}", dir.display()))?;
        Self::take(dir)
    }

    /// Takes the lock; an error that names the holder's process id when another process has it.
    pub fn take(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(LOCK_FILE);
        let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.with_context(|| path.display().to_string())?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = std::fs::read_to_string(&path).unwrap_or_default();
                bail!("data directory {} is in use by process {}", dir.display(), holder.trim());
            }
            Err(TryLockError::Error(e)) => return Err(e).with_context(|| format!("lock {}", path.display())),
        }
        // The process ID is only for the message, so a full disk must not prevent the start. It overwrites the previous
        // one, which takes no space.
        let number = std::process::id().to_string();
        let _ = file.write_all(number.as_bytes()).and_then(|()| file.set_len(number.len() as u64));
        Ok(Self { file })
    }
}

impl Drop for DataDirLock {
    /// Releases the lock also for a child that was forked and has not started its program yet: it has a copy of the open file.
    fn drop(&mut self) {
        // Closing the file releases the lock otherwise.
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_rejected_with_the_name_of_the_first() {
        let dir = std::env::temp_dir().join(format!("kelson-lock-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let first = DataDirLock::take(&dir).unwrap();
        let refused = DataDirLock::take(&dir).err().unwrap().to_string();
        assert!(refused.ends_with(&format!("is in use by process {}", std::process::id())), "{refused}");
        drop(first);
        assert!(DataDirLock::take(&dir).is_ok());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
