//! Files and directories, which have no modes here: who may read them is inherited from the directory above, as it is for what
//! Kubernetes' own programs write on Windows. Everything here blocks.
#![allow(clippy::disallowed_methods, reason = "blocking: callers are in a lane for files, or at start")]
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::Path;

/// A file that this makes belongs to those to whom its directory does.
pub fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

/// A file that this makes belongs to those to whom its directory does.
pub fn open_like<'o>(options: &'o mut OpenOptions, _: &Metadata) -> &'o mut OpenOptions {
    options
}

/// Makes a directory and those above it.
///
/// # Errors
/// The system's.
pub fn make_private_dir(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)
}

/// Makes a directory and those above it; there are no modes.
///
/// # Errors
/// The system's.
pub fn ensure_private_dir(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)
}

/// Nothing is changed: there are no modes. What is not there is an error as elsewhere.
///
/// # Errors
/// The system's.
pub fn make_private(path: &Path) -> io::Result<()> {
    std::fs::metadata(path).map(drop)
}

/// Never anything: there are no modes.
pub fn open_to_others(_: &Path) -> Option<u32> {
    None
}

/// Nothing is changed: [`open_to_others`] finds nothing.
///
/// # Errors
/// Never here; other systems have reasons to fail.
pub fn close_to_others(_: &Path, _: u32) -> io::Result<()> {
    Ok(())
}

/// A file that is opened for nothing but to wait until its data is on the disk, whoever has written it. Only who may write may wait for that here.
///
/// # Errors
/// The system's.
pub fn open_to_sync(file: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(file)
}

/// Names are in the file system's own log; a directory cannot be synced.
///
/// # Errors
/// Never here; other systems have reasons to fail.
pub fn sync_names(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Makes `at` lead to the file `to`.
///
/// # Errors
/// The system's: links may be made by administrators alone, or by everybody where developer mode is on.
pub fn link(to: &Path, at: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(to, at)
}

/// Not known here: whoever asks does without.
///
/// # Errors
/// Always.
pub fn free_bytes(_: &Path) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Makes an empty file so long, with blocks of the disk that belong to it.
///
/// # Errors
/// The system's; the disk is full.
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    crate::zeros(file, bytes)
}

/// Names cannot change places here.
///
/// # Errors
/// Always `Unsupported`.
pub fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
