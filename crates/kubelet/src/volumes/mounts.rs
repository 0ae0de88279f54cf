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
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut out: Vec<PathBuf> =
            table.lines().filter_map(|l| l.split(' ').nth(4)).map(unescape).filter(|p| p.starts_with(dir)).collect();
        out.sort_by_key(|p| std::cmp::Reverse(p.components().count()));
        out
    }
}

/// Octal escapes of mountinfo.
fn unescape(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt as _;
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let code = bytes.get(i + 1..i + 4).filter(|d| bytes[i] == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match code {
            Some(d) => {
                out.push(d.iter().fold(0u32, |n, b| n * 8 + u32::from(b - b'0')) as u8);
                i += 4;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    std::ffi::OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_escapes() {
        assert_eq!(unescape("/a\\040b"), PathBuf::from("/a b"));
        assert_eq!(unescape("/a\\04"), PathBuf::from("/a\\04"));
    }
}
