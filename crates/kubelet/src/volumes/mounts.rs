//! Mounting as an effect. The real one speaks to the kernel; tests count.
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

/// What the kubelet mounts.
pub trait Mounts: Send + Sync + 'static {
    /// A tmpfs of at most `size` bytes (`None`: the kernel's default) with this mode.
    fn tmpfs(&self, at: &Path, size: Option<u64>, mode: u32) -> io::Result<()>;
    /// What `file` is, at `at` too.
    fn bind(&self, file: BorrowedFd<'_>, at: &Path) -> io::Result<()>;
    /// Takes a mount away; nothing there is no error.
    fn unmount(&self, at: &Path) -> io::Result<()>;
    /// Mount points at and below `dir`, the deepest first.
    fn below(&self, dir: &Path) -> Vec<PathBuf>;
}

/// The kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelMounts;

impl Mounts for KernelMounts {
    fn tmpfs(&self, at: &Path, size: Option<u64>, mode: u32) -> io::Result<()> {
        let mut options = format!("mode={mode:o}");
        if let Some(size) = size {
            options.push_str(&format!(",size={size}"));
        }
        let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
        Ok(rustix::mount::mount("tmpfs", at, "tmpfs", MountFlags::empty(), Some(options.as_c_str()))?)
    }

    fn bind(&self, file: BorrowedFd<'_>, at: &Path) -> io::Result<()> {
        use std::os::fd::AsRawFd as _;
        // By handle: what was opened beneath the volume is what is mounted, whatever its path leads to by now.
        let source = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::mount::mount_bind(source.as_str(), at)?;
        Ok(rustix::mount::mount_change(at, MountPropagationFlags::PRIVATE)?)
    }

    fn unmount(&self, at: &Path) -> io::Result<()> {
        match rustix::mount::unmount(at, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
            Err(rustix::io::Errno::BUSY) => {
                Ok(rustix::mount::unmount(at, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?)
            }
            Err(e) => Err(e.into()),
        }
    }

    fn below(&self, dir: &Path) -> Vec<PathBuf> {
        kelson_cri::mounts::below(dir)
    }
}
