//! `subPath`: a file or directory in a volume. It is opened beneath the volume's root by handle, so that no symbolic link of a pod leads
//! out of the volume (CVE-2017-1002101, CVE-2021-25741), and bind-mounted through that handle.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::mounts::Mounts;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// Opens `sub` beneath `root`. Creates missing directories with the mode of the volume's root, unless `read_only`.
///
/// # Errors
/// `sub` leads out of the volume, or became a link while it was opened.
pub fn open(root: &Path, sub: &str, read_only: bool) -> io::Result<OwnedFd> {
    open_watched(root, sub, read_only, &mut |_| {})
}

/// The same, for tests: `made` is called for each created directory before it is opened, when a writer of the volume could replace it.
fn open_watched(root: &Path, sub: &str, read_only: bool, made: &mut dyn FnMut(&str)) -> io::Result<OwnedFd> {
    let path = OFlags::PATH | OFlags::CLOEXEC;
    let base = rustix::fs::open(root, path, Mode::empty())?;
    let found = match rustix::fs::openat2(&base, sub, path, Mode::empty(), RESOLVE) {
        Ok(fd) => fd,
        Err(Errno::NOENT) if !read_only => make(base, sub, made)?,
        Err(Errno::XDEV | Errno::LOOP) => return Err(leads_out(sub)),
        Err(e) => return Err(e.into()),
    };
    // A handle of a symbolic link would be mounted as the link itself, which resolves to a path of the host.
    match FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) {
        FileType::Symlink | FileType::Unknown => Err(leads_out(sub)),
        _ => Ok(found),
    }
}

fn leads_out(sub: &str) -> io::Error {
    io::Error::other(format!("subPath {sub:?} leads out of its volume"))
}

/// Opens `sub` part by part and creates what is missing. A created part is opened only if it is a directory.
fn make(base: OwnedFd, sub: &str, made: &mut dyn FnMut(&str)) -> io::Result<OwnedFd> {
    let path = OFlags::PATH | OFlags::CLOEXEC;
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Like upstream, a user who may write to the volume may also write to the created part.
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&base)?.st_mode & 0o7777);
    let mut at = base;
    for part in sub.split('/').filter(|p| !p.is_empty() && *p != ".") {
        at = match rustix::fs::openat2(&at, part, path, Mode::empty(), RESOLVE) {
            Ok(next) => next,
            Err(Errno::NOENT) => {
                let is_new = match rustix::fs::mkdirat(&at, part, mode) {
                    Ok(()) => true,
                    Err(Errno::EXIST) => false,
                    Err(e) => return Err(e.into()),
                };
                made(part);
                let next = match rustix::fs::openat2(&at, part, directory, Mode::empty(), RESOLVE) {
                    Err(Errno::XDEV | Errno::LOOP | Errno::NOTDIR) => return Err(leads_out(sub)),
                    other => other?,
                };
                if is_new {
                    // The umask removed bits from the mode.
                    rustix::fs::fchmod(&next, mode)?;
                }
                next
            }
            Err(Errno::XDEV | Errno::LOOP) => return Err(leads_out(sub)),
            Err(e) => return Err(e.into()),
        };
    }
    Ok(at)
}

/// Bind-mounts `sub` of the volume at `root` to `target`, which is created as a file or directory. Returns `target`.
pub fn bind(mounts: &dyn Mounts, root: &Path, sub: &str, target: PathBuf, read_only: bool) -> io::Result<PathBuf> {
    let found = open(root, sub, read_only)?;
    let directory = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) == FileType::Directory;
    if mounts.below(&target).contains(&target) {
        // The mount is of the previous instance; the content may have been replaced since.
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

    #[test]
    fn what_takes_the_place_of_a_made_part_is_not_opened() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("tempdir");
        let (root, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        std::fs::create_dir_all(&outside).expect("mkdir");
        std::fs::write(dir.path().join("secret"), "x").expect("write");
        std::fs::create_dir_all(root.join("inside")).expect("mkdir");
        for target in ["/", "../outside", "../secret", "inside", "nowhere"] {
            for sub in ["part", "part/more", "first/part"] {
                let mut at = root.clone();
                let mut swapped = 0;
                let found = open_watched(&root, sub, false, &mut |made| {
                    at.push(made);
                    if made == "part" {
                        std::fs::remove_dir(&at).expect("the part was made");
                        symlink(target, &at).expect("symlink");
                        swapped += 1;
                    }
                });
                let error = found.expect_err("a link is not opened").to_string();
                assert!(error.contains("leads out of its volume"), "{target} {sub}: {error}");
                assert_eq!(swapped, 1, "{target} {sub}");
                std::fs::remove_file(root.join(sub.trim_end_matches("/more"))).expect("the link");
                let _ = std::fs::remove_dir(root.join("first"));
            }
        }
        // A directory in its place is part of the volume, whatever its mode.
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o2777)).expect("chmod");
        let swap = &mut |_: &str| {
            std::fs::remove_dir(root.join("part")).expect("the part was made");
            std::fs::rename(root.join("inside"), root.join("part")).expect("rename");
        };
        assert!(open_watched(&root, "part", false, swap).is_ok());
    }

    #[test]
    fn made_parts_have_the_mode_of_the_volume() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("tempdir");
        for mode in [0o777, 0o750, 0o2775] {
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).expect("chmod");
            let sub = format!("{mode:o}/b");
            open(dir.path(), &sub, false).expect("made");
            for made in [dir.path().join(&sub), dir.path().join(format!("{mode:o}"))] {
                let found = std::fs::metadata(&made).expect("stat").permissions().mode() & 0o7777;
                assert_eq!(found, mode, "{}", made.display());
            }
        }
    }
}
