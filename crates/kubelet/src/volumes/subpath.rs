//! `subPath`: a file or directory inside a volume, opened beneath the volume's root by handle, so that no symlink of a
//! pod's making leads out of it (CVE-2017-1002101, CVE-2021-25741), and bound by that handle.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::mounts::Mounts;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// Opens `sub` beneath `root`; directories that do not exist are made (mode 0750) unless `read_only`.
pub fn open(root: &Path, sub: &str, read_only: bool) -> io::Result<OwnedFd> {
    let path = OFlags::PATH | OFlags::CLOEXEC;
    let base = rustix::fs::open(root, path, Mode::empty())?;
    match rustix::fs::openat2(&base, sub, path, Mode::empty(), RESOLVE) {
        Ok(fd) => return Ok(fd),
        Err(Errno::NOENT) if !read_only => {}
        Err(Errno::XDEV | Errno::LOOP) => {
            return Err(io::Error::other(format!("subPath {sub:?} leads out of its volume")));
        }
        Err(e) => return Err(e.into()),
    }
    let mut at = base;
    for part in sub.split('/').filter(|p| !p.is_empty() && *p != ".") {
        let next = match rustix::fs::openat2(&at, part, path, Mode::empty(), RESOLVE) {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&at, part, Mode::from_raw_mode(0o750)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e.into()),
                }
                rustix::fs::openat2(&at, part, path | OFlags::NOFOLLOW, Mode::empty(), RESOLVE)?
            }
            other => other?,
        };
        at = next;
    }
    Ok(at)
}

/// Binds `sub` of the volume at `root` to `target` (made as what it is), and gives the target back.
pub fn bind(mounts: &dyn Mounts, root: &Path, sub: &str, target: PathBuf, read_only: bool) -> io::Result<PathBuf> {
    let found = open(root, sub, read_only)?;
    let directory = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) == FileType::Directory;
    if mounts.below(&target).contains(&target) {
        // Of the instance before: the content may have been replaced since.
        mounts.unmount(&target)?;
    }
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent)?;
    }
    if directory {
        std::fs::create_dir_all(&target)?;
    } else if !target.exists() {
        std::fs::File::create(&target)?;
    }
    mounts.bind(found.as_fd(), &target)?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn stays_beneath() {
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().join("volume");
        std::fs::create_dir_all(root.join("real")).expect("mkdir");
        std::fs::write(root.join("real/file"), "x").expect("write");
        symlink("real", root.join("inside")).expect("symlink");
        symlink("/etc", root.join("absolute")).expect("symlink");
        symlink("../", root.join("up")).expect("symlink");
        assert!(open(&root, "real/file", true).is_ok());
        assert!(open(&root, "inside/file", true).is_ok(), "links within the volume are fine");
        for bad in ["absolute/passwd", "absolute", "up/x", "../x", "up", "/etc/passwd", "absolute/new"] {
            assert!(open(&root, bad, false).is_err(), "{bad}");
        }
        assert!(open(&root, "missing", true).is_err());
        assert!(open(&root, "a/b/c", false).is_ok() && root.join("a/b/c").is_dir());
    }
}
