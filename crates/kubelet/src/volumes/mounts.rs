//! Mount operations as a trait, so that tests can replace the kernel.
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

/// Mount operations of the kubelet.
pub trait Mounts: Send + Sync + 'static {
    /// Mounts a tmpfs of at most `size` bytes (`None`: the kernel's default) with this mode.
    fn tmpfs(&self, at: &Path, size: Option<u64>, mode: u32) -> io::Result<()>;
    /// Mounts a hugetlbfs with this page size in bytes.
    fn huge_pages(&self, at: &Path, page_bytes: u64) -> io::Result<()>;
    /// Bind-mounts `file` at `at`.
    fn bind(&self, file: BorrowedFd<'_>, at: &Path) -> io::Result<()>;
    /// Unmounts `at`. A path that is not a mount point is not an error.
    fn unmount(&self, at: &Path) -> io::Result<()>;
    /// Returns the mount points at and below `dir`, deepest first.
    fn below(&self, dir: &Path) -> Vec<PathBuf>;
}

/// Returns whether `dir` is a mount point.
pub(super) fn is_mounted(mounts: &dyn Mounts, dir: &Path) -> bool {
    mounts.below(dir).iter().any(|p| p == dir)
}

/// Mounts a tmpfs whose pages are never swapped, if the kernel supports the option (6.4), and otherwise without the option.
fn without_swap(size: Option<u64>, mode: u32, mount: impl Fn(String) -> Result<(), Errno>) -> io::Result<()> {
    let size = size.map(|s| format!(",size={s}")).unwrap_or_default();
    match mount(format!("mode={mode:o}{size},noswap")) {
        Err(Errno::INVAL) => Ok(mount(format!("mode={mode:o}{size}"))?),
        other => Ok(other?),
    }
}

/// Mount operations of this machine's kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelMounts;

impl Mounts for KernelMounts {
    fn tmpfs(&self, at: &Path, size: Option<u64>, mode: u32) -> io::Result<()> {
        without_swap(size, mode, |options| {
            let options = std::ffi::CString::new(options).map_err(|_| Errno::INVAL)?;
            rustix::mount::mount("tmpfs", at, "tmpfs", MountFlags::empty(), Some(options.as_c_str()))
        })
    }

    fn huge_pages(&self, at: &Path, page_bytes: u64) -> io::Result<()> {
        let options = std::ffi::CString::new(format!("pagesize={page_bytes},mode=777")).map_err(|_| Errno::INVAL)?;
        Ok(rustix::mount::mount("nodev", at, "hugetlbfs", MountFlags::empty(), Some(options.as_c_str()))?)
    }

    fn bind(&self, file: BorrowedFd<'_>, at: &Path) -> io::Result<()> {
        use std::os::fd::AsRawFd as _;
        // Mounts the open handle, so that a later change of the path has no effect.
        let source = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::mount::mount_bind(source.as_str(), at)?;
        Ok(rustix::mount::mount_change(at, MountPropagationFlags::PRIVATE)?)
    }

    fn unmount(&self, at: &Path) -> io::Result<()> {
        match rustix::mount::unmount(at, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
            Err(Errno::BUSY) => Ok(rustix::mount::unmount(at, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?),
            Err(e) => Err(e.into()),
        }
    }

    fn below(&self, dir: &Path) -> Vec<PathBuf> {
        kelson_cri::mounts::below(dir)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn memory_does_not_go_to_swap_where_the_kernel_can_promise_it() {
        for (kernel_knows, tried) in
            [(true, vec!["mode=777,size=9,noswap"]), (false, vec!["mode=777,size=9,noswap", "mode=777,size=9"])]
        {
            let asked = RefCell::new(Vec::new());
            let mount = |options: String| {
                let refused = options.contains("noswap") && !kernel_knows;
                asked.borrow_mut().push(options);
                if refused { Err(Errno::INVAL) } else { Ok(()) }
            };
            without_swap(Some(9), 0o777, mount).expect("mounted");
            assert_eq!(*asked.borrow(), tried);
        }
        assert!(without_swap(None, 0o700, |_| Err(Errno::PERM)).is_err());
    }
}
