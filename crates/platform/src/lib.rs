//! Differences between operating systems, for the crates of the control plane: one folder for Unix and one for
//! Windows, with the same interface. Only this crate uses system-specific APIs in those crates.
//!
//! The control plane runs on Linux, macOS and Windows. A node runs on Linux only, and the crates of the node call
//! Linux directly. Where a system lacks a feature, the function either does nothing or fails with
//! [`std::io::ErrorKind::Unsupported`]; its documentation says which.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::{files, process, service};
#[cfg(all(unix, feature = "tokio"))]
pub use unix::{signals, sockets};
#[cfg(windows)]
pub use windows::{files, process, service};
#[cfg(all(windows, feature = "tokio"))]
pub use windows::{signals, sockets};

#[cfg(feature = "tokio")]
mod changes;
mod program;
mod usage;

#[cfg(feature = "tokio")]
pub use changes::DirChanges;
pub use program::ProgramPages;
pub use usage::Usage;

/// Fills an empty file with zeros up to a length.
#[allow(clippy::disallowed_methods, reason = "blocking: callers are in a lane for files, or at start")]
fn zeros(file: &std::fs::File, bytes: u64) -> std::io::Result<()> {
    std::io::copy(&mut std::io::Read::take(std::io::repeat(0), bytes), &mut &*file).map(drop)
}
