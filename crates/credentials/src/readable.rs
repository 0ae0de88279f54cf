//! Waiting for a kernel object (a process, a watch on files) to become readable; nothing else.
use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a file descriptor that stays owned by what is returned.
pub(crate) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned, so it is open and the same one for as long as it is registered.
    #[allow(unsafe_code)]
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    registered.map_err(|e| io::Error::other(e.to_string()))
}
