//! How full the file systems of the node are.
use std::path::Path;

/// Usage of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes in all.
    pub capacity: u64,
    /// Bytes that unprivileged users may still take.
    pub available: u64,
}

impl DiskUsage {
    /// Of the file system a path is on.
    pub fn of(path: &Path) -> Option<Self> {
        let s = rustix::fs::statvfs(path).ok()?;
        Some(Self { capacity: s.f_blocks * s.f_frsize, available: s.f_bavail * s.f_frsize })
    }
    /// The share in use, in percent.
    pub fn percent(self) -> u64 {
        100u64.saturating_sub(self.available.saturating_mul(100) / self.capacity.max(1))
    }
}
