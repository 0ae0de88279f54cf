//! File work of volumes: where it runs, and the one thing that most of them do.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, removals in one of their own")]

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use kelson_tasks::FILES;

/// File work of a volume, in the lane of such work.
pub(super) async fn in_files<T, W>(work: W) -> Result<T, String>
where
    W: FnOnce() -> Result<T, String> + Send + 'static,
    T: Send + 'static,
{
    FILES.run(work).await.map_err(|e| e.to_string())?
}

/// Makes a directory with this mode, whatever the process's mask; one that is there stays as it is.
pub(super) fn make_dir(dir: &Path, mode: u32) -> io::Result<()> {
    if !dir.exists() {
        std::fs::create_dir_all(dir)?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}
