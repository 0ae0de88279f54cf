//! This process and its machine. There is no limit of open files, no core file that nobody asked for, and no parent that is known
//! to live.
use std::io;

/// Nothing need be done: no core file is written unless an administrator asked for it.
///
/// # Errors
/// Never here; other systems have reasons to fail.
pub fn keep_memory_private() -> io::Result<()> {
    Ok(())
}

/// Nothing need be done: there is no limit.
///
/// # Errors
/// Never here; other systems have reasons to fail.
pub fn raise_open_files() -> io::Result<()> {
    Ok(())
}

/// `None`: any number.
pub fn open_files_max() -> Option<u64> {
    None
}

/// The machine's name as it was given it.
pub fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// Nobody: a process does not hear here that its parent has ended, and the parent's number may be another's by then.
pub fn parent() -> Option<u32> {
    None
}

/// Whether the system says with [`parent`] that a parent has ended.
pub const KNOWS_PARENT: bool = false;

/// What this process uses: nothing of it is said by files here.
pub fn usage() -> crate::Usage {
    crate::Usage::default()
}

/// Identifies this boot of the machine; `None`: the system does not say.
pub fn boot_id() -> Option<String> {
    None
}

/// Memory that this process may use; not known here.
pub fn memory_bytes() -> Option<u64> {
    None
}
