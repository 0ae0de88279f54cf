//! Private files and directories, and directory entries that survive a power failure. All functions block.
#![allow(clippy::disallowed_methods, reason = "blocking: callers are in a lane for files, or at start")]
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// The permission bits of the group and of other users.
const OTHERS: u32 = 0o077;

/// Makes new files accessible to their owner only.
pub fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600)
}

/// Gives new files the permissions of the file with the metadata `about`.
pub fn open_like<'o>(options: &'o mut OpenOptions, about: &Metadata) -> &'o mut OpenOptions {
    options.mode(about.permissions().mode())
}

/// Creates a directory and its parents, accessible to their owner only. An existing directory is not changed.
///
/// # Errors
/// Returns the error of the operating system.
pub fn make_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Creates a directory that only its owner can access, or restricts an existing one. Missing parents get the process's
/// default mode; existing parents are not changed.
///
/// # Errors
/// Returns the error of the operating system.
pub fn ensure_private_dir(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => make_private(dir),
        made => made,
    }
}

/// Restricts an existing file, socket or directory to its owner.
///
/// # Errors
/// Returns the error of the operating system.
pub fn make_private(path: &Path) -> io::Result<()> {
    let mode = if std::fs::metadata(path)?.is_dir() { 0o700 } else { 0o600 };
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Returns the mode of a regular file or a directory that other users can access. Returns `None` if they cannot, or
/// for another type of file.
pub fn open_to_others(file: &Path) -> Option<u32> {
    let about = std::fs::symlink_metadata(file).ok().filter(|about| about.is_file() || about.is_dir())?;
    let mode = about.permissions().mode() & 0o7777;
    (mode & OTHERS != 0).then_some(mode)
}

/// Removes the permissions of other users that [`open_to_others`] found, and keeps the owner's.
///
/// # Errors
/// Returns the error of the operating system.
pub fn close_to_others(file: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(file, Permissions::from_mode(mode & !OTHERS))
}

/// Opens a file only to wait until its data is on disk, regardless of which process wrote it.
///
/// # Errors
/// Returns the error of the operating system.
pub fn open_to_sync(file: &Path) -> io::Result<File> {
    File::open(file)
}

/// Syncs a directory, so that its new entries survive a power failure.
///
/// # Errors
/// Returns the error of the operating system.
pub fn sync_names(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Creates the symbolic link `at` to the file `to`.
///
/// # Errors
/// Returns the error of the operating system.
pub fn link(to: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

/// Returns the bytes that an unprivileged user may still write to the file system of a directory.
///
/// # Errors
/// Returns the error of the operating system.
pub fn free_bytes(dir: &Path) -> io::Result<u64> {
    let about = rustix::fs::statvfs(dir)?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

/// Extends an empty file to a length and allocates its disk blocks.
///
/// # Errors
/// Returns the error of the operating system, for example if the disk is full.
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        // A file system without this operation gets zeros.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
        done => return Ok(done?),
    }
    crate::zeros(file, bytes)
}

/// Exchanges two entries of one directory atomically, also with regard to a power failure. Fails with `Unsupported` if
/// the system or the file system cannot do it.
///
/// # Errors
/// Returns the error of the operating system.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
            done => Ok(done?),
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (one, other);
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn what_is_private_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let (below, file) = (dir.path().join("a/b"), dir.path().join("a/b/key"));
        make_private_dir(&below).unwrap();
        make_private_dir(&below).unwrap();
        assert_eq!([mode(&below), mode(&dir.path().join("a"))], [0o700; 2]);
        private(OpenOptions::new().write(true).create(true)).open(&file).unwrap().write_all(b"x").unwrap();
        assert_eq!((mode(&file), open_to_others(&file)), (0o600, None));
        std::fs::set_permissions(&file, Permissions::from_mode(0o444)).unwrap();
        assert_eq!(open_to_others(&file), Some(0o444));
        close_to_others(&file, 0o444).unwrap();
        assert_eq!(mode(&file), 0o400, "its owner's mode stays");
        std::fs::set_permissions(&below, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(open_to_others(&below), Some(0o755), "a directory counts as a file does");
        make_private(&below).unwrap();
        make_private(&file).unwrap();
        assert_eq!((mode(&below), mode(&file)), (0o700, 0o600));
    }

    #[test]
    fn one_directory_is_closed_and_those_above_it_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let (above, below) = (dir.path().join("kubelet"), dir.path().join("kubelet/pki"));
        ensure_private_dir(&below).unwrap();
        std::fs::create_dir(dir.path().join("usual")).unwrap();
        assert_eq!((mode(&above), mode(&below)), (mode(&dir.path().join("usual")), 0o700));
        for path in [&above, &below] {
            std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        ensure_private_dir(&below).unwrap();
        assert_eq!((mode(&above), mode(&below)), (0o755, 0o700), "what exists is closed; its parent keeps its mode");
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert_eq!(ensure_private_dir(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn files_get_their_room_and_change_places() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        reserve(&File::create(&one).unwrap(), 100_000).unwrap();
        std::fs::write(&other, "x").unwrap();
        assert_eq!(std::fs::metadata(&one).unwrap().len(), 100_000);
        assert!(free_bytes(dir.path()).is_ok());
        match exchange(&one, &other) {
            Ok(()) => assert_eq!(std::fs::read(&one).unwrap(), b"x"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
        }
        crate::zeros(&File::create(&one).unwrap(), 100_000).unwrap();
        assert_eq!(std::fs::read(&one).unwrap(), vec![0; 100_000]);
    }

    #[test]
    fn a_copy_is_open_to_those_who_had_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::write(&from, "x").unwrap();
        std::fs::set_permissions(&from, Permissions::from_mode(0o640)).unwrap();
        let about = std::fs::metadata(&from).unwrap();
        open_like(OpenOptions::new().write(true).create(true), &about).open(&to).unwrap();
        assert_eq!(mode(&to) & !0o640, 0, "as far as the process's mask lets it");
    }

    #[test]
    fn links_lead_to_files_and_names_are_synced() {
        let dir = tempfile::tempdir().unwrap();
        let (to, at) = (dir.path().join("to"), dir.path().join("at"));
        std::fs::write(&to, "x").unwrap();
        link(&to, &at).unwrap();
        assert_eq!(std::fs::read(&at).unwrap(), b"x");
        open_to_sync(&to).unwrap().sync_data().unwrap();
        sync_names(dir.path()).unwrap();
        assert_eq!(open_to_sync(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
