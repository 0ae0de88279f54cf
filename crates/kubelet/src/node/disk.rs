//! Usage of the node's file systems.
use std::path::Path;

/// Usage of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// Size in bytes.
    pub capacity: u64,
    /// Bytes available to unprivileged users.
    pub available: u64,
}

impl DiskUsage {
    /// Reads the usage of the file system of a path.
    pub fn of(path: &Path) -> Option<Self> {
        let s = rustix::fs::statvfs(path).ok()?;
        Some(Self { capacity: s.f_blocks * s.f_frsize, available: s.f_bavail * s.f_frsize })
    }
    /// Usage in percent.
    pub fn percent(self) -> u64 {
        100u64.saturating_sub(self.available.saturating_mul(100) / self.capacity.max(1))
    }
}
