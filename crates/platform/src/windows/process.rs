//! This process and its machine. Windows has no limit of open files, writes no core file by default, and does not
//! report that the parent has ended.
use std::io;

/// Does nothing: core files are written only if an administrator has configured them.
///
/// # Errors
/// This function never fails on this system; it may fail on others.
pub fn keep_memory_private() -> io::Result<()> {
    Ok(())
}

/// Does nothing, because there is no limit.
///
/// # Errors
/// This function never fails on this system; it may fail on others.
pub fn raise_open_files() -> io::Result<()> {
    Ok(())
}

/// Returns `None`, which means unlimited.
pub fn open_files_max() -> Option<u64> {
    None
}

/// Returns the host name as it was configured.
pub fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// Returns `None`: Windows does not report the end of a parent, and its process ID may be in use again.
pub fn parent() -> Option<u32> {
    None
}

/// Whether [`parent`] shows on this system that the parent has ended.
pub const KNOWS_PARENT: bool = false;

/// Returns the resource usage of this process, which is unknown on this system.
pub fn usage() -> crate::Usage {
    crate::Usage::default()
}

/// Returns the ID of this boot of the machine, or `None` if the system has none.
pub fn boot_id() -> Option<String> {
    None
}

/// Returns the memory that this process may use, which is unknown on this system.
pub fn memory_bytes() -> Option<u64> {
    None
}
