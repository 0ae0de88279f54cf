//! A cluster of one member from the data of a member that has lost its quorum.

use std::fs;
use std::io;
use std::path::Path;

use kelson_platform::files::make_private_dir;
use kelson_tasks::FILES;

use super::offline::{Members, OfflineMember};
use super::place::{self, Change};
use super::{MoveError, Moved, io_at, wal};

/// Makes the member of a stopped server the only one of its cluster, with all data that it has received. The work is done on a copy:
/// an interrupted reset has changed nothing and can be repeated. `binary` is the etcd program.
///
/// # Errors
/// See [`MoveError`].
pub async fn reset(data_dir: &Path, binary: &Path) -> Result<Moved, MoveError> {
    let dir = data_dir.to_path_buf();
    let copied = FILES.run(move || {
        place::settle(&dir).map_err(io_at(&dir))?;
        let data = place::member_data(&dir);
        if !place::has_member(&dir) {
            return Err(MoveError::Absent(data));
        }
        let copy = Change::Reset.begin(&dir).map_err(io_at(&dir))?;
        copy_all(&data, &copy).map_err(io_at(&copy))?;
        let uncommitted = wal::commit_all(&place::wal(&copy)).map_err(io_at(&copy))?;
        if uncommitted > 0 {
            tracing::info!(
                entries = uncommitted,
                "the last writes of the member are kept, which may not have been acknowledged"
            );
        }
        Ok(copy)
    });
    let copy = copied.await??;
    // The first start removes the other members, and the second one shows that this is in the data.
    OfflineMember::start(binary, &copy, Members::Alone).await?.stop().await?;
    let member = OfflineMember::start(binary, &copy, Members::Kept).await?;
    member.check_alone().await?;
    // A read that waits until the member has applied all it has; its state may be from before.
    let objects = member.count_keys().await?;
    let status = member.status().await?;
    let revision = status.header.map_or(0, |header| u64::try_from(header.revision).unwrap_or(0));
    member.stop().await?;
    if objects == 0 {
        // Nothing is replaced by a member without objects.
        return Err(MoveError::Absent(place::member_data(data_dir)));
    }
    let dir = data_dir.to_path_buf();
    let finished = FILES.run(move || {
        place::sync_all(&copy)?;
        Change::Reset.finish(&dir)
    });
    let aside = finished.await?.map_err(io_at(data_dir))?;
    Ok(Moved { revision, objects, aside })
}

/// Copies a directory for its owner only.
fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    make_private_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), &to)?;
        }
    }
    Ok(())
}
