//! Waits for changes in a directory with inotify, so that following a log needs no polling.
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

/// A watch of one directory.
pub struct Watch {
    fd: AsyncFd<OwnedFd>,
}

impl Watch {
    /// Watches `dir` for writes, renames, new files and removals.
    pub fn new(dir: &Path) -> io::Result<Self> {
        let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        let events = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::MOVED_FROM
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::DELETE_SELF;
        inotify::add_watch(&fd, dir, events)?;
        // SAFETY: the registration owns the descriptor, so the descriptor lives exactly as long as the registration.
        #[allow(unsafe_code)]
        let fd = unsafe { AsyncFd::register(fd) }?;
        Ok(Self { fd })
    }

    /// Waits for a change after the last call.
    pub async fn changed(&self) -> io::Result<()> {
        let mut buffer = [0u8; 4096];
        loop {
            let mut guard = self.fd.readable().await?;
            let read = guard.try_io(|fd| Ok(rustix::io::read(fd.get_ref().as_fd(), &mut buffer)?));
            match read {
                Ok(Ok(_)) => {
                    // Reads all queued events, so that a burst counts as one change.
                    while rustix::io::read(self.fd.get_ref().as_fd(), &mut buffer).is_ok_and(|n| n > 0) {}
                    return Ok(());
                }
                Ok(Err(e)) => return Err(e),
                Err(_would_block) => {}
            }
        }
    }
}
