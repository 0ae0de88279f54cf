//! Reports changes in directories, on Linux by inotify(7). Other systems report none, so callers must also poll. They
//! need to poll on Linux as well, because reports can be lost.
use std::io;
use std::path::PathBuf;

#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

#[cfg(target_os = "linux")]
use tokio::io::Interest;
#[cfg(target_os = "linux")]
use tokio::io::unix::AsyncFd;

/// Watches directories for changes of their entries. Subdirectories are not watched.
#[derive(Debug)]
pub struct DirChanges {
    #[cfg(target_os = "linux")]
    fd: AsyncFd<OwnedFd>,
}

#[cfg(not(target_os = "linux"))]
impl DirChanges {
    /// Fails, because this system reports no changes.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::Unsupported`].
    pub fn watch(_: &[PathBuf]) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Waits without end.
    ///
    /// # Errors
    /// This function never fails.
    pub async fn changed(&mut self) -> io::Result<()> {
        std::future::pending().await
    }
}

#[cfg(target_os = "linux")]
impl DirChanges {
    /// Starts to watch directories. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// Returns the error of the operating system: a directory does not exist, or the user has too many watches.
    pub fn watch(dirs: &[PathBuf]) -> io::Result<Self> {
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
        let fd = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let what = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        for dir in dirs {
            add_watch(&fd, dir, what)?;
        }
        // SAFETY: the descriptor is owned, so it stays open and the same while it is registered.
        #[allow(unsafe_code)]
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self { fd: registered.map_err(|e| io::Error::other(e.to_string()))? })
    }

    /// Returns after a change since the last call.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub async fn changed(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            let mut ready = self.fd.readable().await?;
            let mut any = false;
            // Discards all events: only the fact of a change matters.
            loop {
                match rustix::io::read(ready.get_inner(), &mut buffer[..]) {
                    Ok(0) | Err(rustix::io::Errno::AGAIN) => break,
                    Ok(_) => any = true,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            ready.clear_ready();
            if any {
                return Ok(());
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn changes_of_a_directory_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut changes = DirChanges::watch(&[dir.path().to_owned()]).unwrap();
        let none = tokio::time::timeout(Duration::ZERO, changes.changed());
        assert!(none.await.is_err(), "nothing has changed yet");
        std::fs::write(dir.path().join("a"), "1").unwrap();
        changes.changed().await.unwrap();
        std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        changes.changed().await.unwrap();
        std::fs::remove_file(dir.path().join("b")).unwrap();
        changes.changed().await.unwrap();
        assert!(DirChanges::watch(&[dir.path().join("none")]).is_err());
    }
}
