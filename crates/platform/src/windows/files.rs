//! Files and directories. They have no modes on Windows: access is inherited from the parent directory, as for the
//! files of Kubernetes' programs on Windows. All functions block.
#![allow(clippy::disallowed_methods, reason = "blocking: callers are in a lane for files, or at start")]
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::Path;

/// Changes nothing: new files inherit access from their directory.
pub fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

/// Changes nothing: new files inherit access from their directory.
pub fn open_like<'o>(options: &'o mut OpenOptions, _: &Metadata) -> &'o mut OpenOptions {
    options
}

/// Creates a directory and its parents.
///
/// # Errors
/// Returns the error of the operating system.
pub fn make_private_dir(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)
}

/// Creates a directory and its parents. There are no modes to set.
///
/// # Errors
/// Returns the error of the operating system.
pub fn ensure_private_dir(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)
}

/// Changes nothing, because there are no modes. A missing file is an error as on other systems.
///
/// # Errors
/// Returns the error of the operating system.
pub fn make_private(path: &Path) -> io::Result<()> {
    std::fs::metadata(path).map(drop)
}

/// Returns `None`, because there are no modes.
pub fn open_to_others(_: &Path) -> Option<u32> {
    None
}

/// Changes nothing, because [`open_to_others`] never returns a mode.
///
/// # Errors
/// This function never fails on this system; it may fail on others.
pub fn close_to_others(_: &Path, _: u32) -> io::Result<()> {
    Ok(())
}

/// Opens a file only to wait until its data is on disk, regardless of which process wrote it. On Windows this requires
/// write access.
///
/// # Errors
/// Returns the error of the operating system.
pub fn open_to_sync(file: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(file)
}

/// Does nothing: NTFS logs directory entries, and a directory cannot be synced.
///
/// # Errors
/// This function never fails on this system; it may fail on others.
pub fn sync_names(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Creates the symbolic link `at` to the file `to`.
///
/// # Errors
/// Returns the error of the operating system: only administrators may create links, unless developer mode is on.
pub fn link(to: &Path, at: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(to, at)
}

/// Fails, because the value is unknown on this system. Callers must continue without it.
///
/// # Errors
/// This function always fails.
pub fn free_bytes(_: &Path) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Extends an empty file to a length and allocates its disk blocks.
///
/// # Errors
/// Returns the error of the operating system, for example if the disk is full.
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    crate::zeros(file, bytes)
}

/// Fails, because this system cannot exchange two entries.
///
/// # Errors
/// Always returns `Unsupported`.
pub fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
