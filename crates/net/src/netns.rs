//! Runs work in a network namespace, and netlink's event loop on the thread that waits for it.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of `aside`; as a CNI plugin a process of its own")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::NetError;

/// Runs `work` to its end on a temporary runtime, in the calling thread's namespace.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, NetError>>) -> Result<T, NetError> {
    // On the heap, so that the runtime's part is compiled for each type of result, not for each future.
    let work: Pin<Box<dyn Future<Output = _> + '_>> = Box::pin(work);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(NetError::io("start an event loop"))?.block_on(work)
}

/// Runs `work` on a new thread inside `netns`; the thread ends with it, so that no other work runs in that namespace.
pub(crate) fn in_netns<T: Send>(
    netns: BorrowedFd<'_>,
    work: impl FnOnce() -> Result<T, NetError> + Send,
) -> Result<T, NetError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))
                .map_err(|e| NetError::io("enter the pod's network namespace")(e.into()))?;
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// An open network namespace.
pub(crate) struct Netns(std::fs::File);

impl Netns {
    pub fn open(path: &str) -> Result<Self, NetError> {
        let file = std::fs::File::open(path).map_err(NetError::io(format!("open network namespace {path}")))?;
        Ok(Self(file))
    }

    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T, NetError> + Send) -> Result<T, NetError> {
        in_netns(self.0.as_fd(), work)
    }
}
