//! File operations of volumes.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use kelson_tasks::FILES;

/// Runs a blocking file operation in the lane for files.
pub(super) async fn in_files<T, W>(work: W) -> Result<T, String>
where
    W: FnOnce() -> Result<T, String> + Send + 'static,
    T: Send + 'static,
{
    FILES.run(work).await.map_err(|e| e.to_string())?
}

/// Creates a directory with this mode, regardless of the umask. An existing directory is unchanged.
pub(super) fn make_dir(dir: &Path, mode: u32) -> io::Result<()> {
    if !dir.exists() {
        std::fs::create_dir_all(dir)?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}
