//! The manifest directory of a server, `DIR/manifests`: its files are read here, and the controller
//! `manifests-controller` keeps their objects applied.
mod documents;
mod files;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kelson_controllers::ManifestSet;
use kelson_platform::{DirChanges, files::make_private_dir};
use kelson_tasks::{FILES, LaneError, OnPanic, Tasks};
use tokio::sync::watch;

use files::{Look, ManifestDir};

/// The manifest directory in a data directory.
const DIR: &str = "manifests";
/// The interval of scans without notifications: they can be lost, and some file systems do not have them.
const RESCAN: Duration = Duration::from_secs(60);
/// The interval of scans if the system has no notifications.
const RESCAN_UNREPORTED: Duration = Duration::from_secs(15);
/// The time for which files must be unchanged before they are read, since they are written in several steps.
const SETTLE: Duration = Duration::from_millis(200);
/// The maximum wait while changes continue.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// Creates the directory if missing, reads it, and follows its changes until `tasks` ends.
///
/// # Errors
/// The directory cannot be created.
pub async fn follow(data_dir: &Path, prunes: bool, tasks: &Tasks) -> anyhow::Result<watch::Receiver<Arc<ManifestSet>>> {
    let root = data_dir.join(DIR);
    let made = root.clone();
    FILES.run(move || make_private_dir(&made)).await?.with_context(|| root.display().to_string())?;
    let (dir, look) = look(ManifestDir::new(root, prunes)).await?;
    let (publish, manifests) = watch::channel(Arc::new(look.set));
    let follower = ManifestFollower { dir, dirs: look.dirs, publish };
    tasks.spawn("manifest-files", OnPanic::Contain, follower.run());
    Ok(manifests)
}

async fn look(mut dir: ManifestDir) -> Result<(ManifestDir, Look), LaneError> {
    FILES
        .run(move || {
            let look = dir.look();
            (dir, look)
        })
        .await
}

struct ManifestFollower {
    dir: ManifestDir,
    dirs: Vec<PathBuf>,
    publish: watch::Sender<Arc<ManifestSet>>,
}

impl ManifestFollower {
    async fn run(mut self) {
        let mut is_reported = true;
        loop {
            // Watched before it is read, so that no change is missed.
            let changes = DirChanges::watch(&self.dirs);
            if let Err(error) = &changes
                && std::mem::replace(&mut is_reported, false)
            {
                tracing::info!(%error, "changes of manifests are not reported by the system; they are looked for every {RESCAN_UNREPORTED:?}");
            }
            is_reported |= changes.is_ok();
            let (dir, found) = match look(self.dir).await {
                Ok(found) => found,
                Err(error) => return tracing::error!(%error, "stopped watching manifests"),
            };
            self.dir = dir;
            self.publish.send_if_modified(|set| {
                let is_new = **set != found.set;
                if is_new {
                    *set = Arc::new(found.set);
                }
                is_new
            });
            if found.dirs != self.dirs {
                self.dirs = found.dirs;
                continue;
            }
            match changes {
                Ok(changes) => settle(changes).await,
                Err(_) => tokio::time::sleep(RESCAN_UNREPORTED).await,
            }
        }
    }
}

/// Waits for a change, and then until there is none for a while.
async fn settle(mut changes: DirChanges) {
    match tokio::time::timeout(RESCAN, changes.changed()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::debug!(%error, "watching manifests failed");
            return tokio::time::sleep(RESCAN_UNREPORTED).await;
        }
        Err(_) => return,
    }
    let latest = tokio::time::Instant::now() + SETTLE_MAX;
    while tokio::time::Instant::now() < latest
        && matches!(tokio::time::timeout(SETTLE, changes.changed()).await, Ok(Ok(())))
    {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_of_files_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::root("test");
        let mut manifests = follow(dir.path(), false, &tasks).await.unwrap();
        assert!(manifests.borrow().files.is_empty() && manifests.borrow().complete);
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
        let sub = dir.path().join(DIR).join("sub");
        std::fs::create_dir(&sub).unwrap();
        std::fs::write(sub.join("a.yaml"), text).unwrap();
        manifests.wait_for(|set| set.files.len() == 1).await.unwrap();
        // The directory that was created since is watched as well.
        std::fs::write(sub.join("b.yaml"), text).unwrap();
        manifests.wait_for(|set| set.files.len() == 2).await.unwrap();
        std::fs::remove_dir_all(&sub).unwrap();
        manifests.wait_for(|set| set.files.is_empty()).await.unwrap();
        tasks.shutdown(Duration::from_secs(5)).await;
    }
}
