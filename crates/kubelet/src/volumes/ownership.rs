//! `fsGroup`: changes the group of a persistent volume's files to the pod's group, always or only if the root differs (upstream:
//! `pkg/volume/volume_linux.go`, KEP-695). Everything is opened beneath the root by handle, and symbolic links are not followed.
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags};

use super::source::Request;

/// Permission bits that the group gets on files, and in addition on directories (search and set-group-ID).
const FILE: u32 = 0o660;
const DIRECTORY: u32 = 0o2110;
/// Maximum depth of the tree, because each level holds an open handle.
const DEPTH_MAX: usize = 256;

/// Group and policy of a volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ownership {
    group: u32,
    /// Change nothing if the root already has the group (`fsGroupChangePolicy: OnRootMismatch`).
    if_root_differs: bool,
}

/// Reads the pod's security context. `None` if it has no `fsGroup` or the volume is read-only.
pub(super) fn of(request: &Request<'_>) -> Option<Ownership> {
    let group = request.fs_group()?;
    if request.persistent.as_ref().is_some_and(|p| p.read_only) {
        return None;
    }
    let context = request.pod.spec.as_ref()?.security_context.as_ref()?;
    let if_root_differs = context.fs_group_change_policy.as_deref() == Some("OnRootMismatch");
    Some(Ownership { group, if_root_differs })
}

fn is_groups(stat: &rustix::fs::Stat, group: u32, wanted: u32) -> bool {
    stat.st_gid == group && stat.st_mode & wanted == wanted
}

impl Ownership {
    /// Applies the group to the tree at `root`.
    pub(super) fn apply(self, root: &Path) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(root, flags, Mode::empty())?;
        if self.if_root_differs && is_groups(&rustix::fs::fstat(&handle)?, self.group, FILE | DIRECTORY) {
            return Ok(());
        }
        self.directory(handle, 0)
    }

    /// Changes the contents before the directory itself, so that the root's group shows whether all was done.
    fn directory(self, handle: OwnedFd, depth: usize) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(io::Error::other("directories are nested too deeply"));
        }
        let mut entries = Dir::read_from(&handle)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                self.entry(&handle, name, depth)?;
            }
        }
        rustix::fs::fchown(&handle, None, Some(self.gid()))?;
        let mode = rustix::fs::fstat(&handle)?.st_mode;
        rustix::fs::fchmod(&handle, Mode::from_raw_mode(mode & 0o7777 | FILE | DIRECTORY))?;
        Ok(())
    }

    fn entry(self, parent: &OwnedFd, name: &CStr, depth: usize) -> io::Result<()> {
        let path = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = match rustix::fs::openat(parent, name, path, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            other => other?,
        };
        let stat = rustix::fs::fstat(&handle)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let inner = rustix::fs::openat(handle.as_fd(), c".", flags, Mode::empty())?;
                return self.directory(inner, depth + 1);
            }
            FileType::RegularFile if !is_groups(&stat, self.group, FILE) => {
                rustix::fs::chownat(&handle, c"", None, Some(self.gid()), AtFlags::EMPTY_PATH)?;
                // `chmod` does not work on an `O_PATH` handle; this path to it cannot be redirected.
                use std::os::fd::AsRawFd as _;
                let by_handle = format!("/proc/self/fd/{}", handle.as_raw_fd());
                rustix::fs::chmod(by_handle.as_str(), Mode::from_raw_mode(stat.st_mode & 0o7777 | FILE))?;
            }
            FileType::RegularFile => {}
            _ => rustix::fs::chownat(&handle, c"", None, Some(self.gid()), AtFlags::EMPTY_PATH)?,
        }
        Ok(())
    }

    fn gid(self) -> Gid {
        Gid::from_raw(self.group)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn fs_group_applies_to_the_volume_only() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (root, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        fs::create_dir_all(root.join("sub")).expect("mkdir");
        for f in [&root.join("sub/file"), &outside] {
            fs::write(f, "x").expect("write");
            fs::set_permissions(f, fs::Permissions::from_mode(0o600)).expect("chmod");
        }
        symlink(&outside, root.join("link")).expect("symlink");
        // The test user's own group, which needs no privileges.
        let group = fs::metadata(&root).expect("stat").gid();
        let mode = |p: &Path| fs::metadata(p).expect("stat").permissions().mode() & 0o7777;
        let all = Ownership { group, if_root_differs: false };
        all.apply(&root).expect("applied");
        assert_eq!(mode(&root.join("sub/file")), 0o660);
        assert_eq!(mode(&root) & 0o2770, 0o2770);
        assert_eq!(mode(&outside), 0o600, "a link is not followed");
        fs::set_permissions(root.join("sub/file"), fs::Permissions::from_mode(0o600)).expect("chmod");
        Ownership { group, if_root_differs: true }.apply(&root).expect("applied");
        assert_eq!(mode(&root.join("sub/file")), 0o600, "the root is the group's already");
        all.apply(&root).expect("applied");
        assert_eq!(mode(&root.join("sub/file")), 0o660);
    }
}
