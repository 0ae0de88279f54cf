//! Windows, which has no signal that asks a process to end.

use std::io;
use std::path::Path;
use std::process::Command;

/// Does nothing on Windows.
pub(crate) fn end_with_parent(_: &mut Command) {}

/// Not supported: the caller kills the process, which etcd's log withstands.
///
/// # Errors
/// Always [`io::ErrorKind::Unsupported`].
pub(crate) fn ask_to_end(_: u32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Reports whether a path is a file.
#[allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]
pub(crate) fn is_executable(path: &Path) -> bool {
    path.is_file()
}
