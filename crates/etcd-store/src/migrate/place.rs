//! The directories of a server's data, and the names that a move gives them.
//!
//! | name in the data directory | content |
//! |---|---|
//! | `store` | the embedded store |
//! | `etcd/data` | the data directory of the member |
//! | `etcd.migrating`, `store.migrating`, `etcd.resetting` | unfinished; removed by the next attempt |
//! | `etcd.migrated`, `store.migrated`, `etcd.reset` | complete: it replaces the present data |
//! | `store.before-TIME`, `etcd.before-TIME` | the data of before |
//!
//! A rename to a name of the third kind decides; [`settle`] completes it, also after the process was killed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kelson_platform::files::{make_private_dir, sync_names};

/// The embedded store, below a data directory.
const STORE: &str = "store";
/// The member with its certificates and settings.
const MEMBER: &str = "etcd";
/// The data directory of etcd, below the member's.
const MEMBER_DATA: &str = "data";

/// A change of a server's data that is made beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The embedded store is replaced by the data of a new member.
    IntoEtcd,
    /// The member is replaced by an embedded store.
    IntoEmbedded,
    /// The data of the member is replaced by other data of it.
    Reset,
}

impl Change {
    const ALL: [Self; 3] = [Self::IntoEtcd, Self::IntoEmbedded, Self::Reset];

    /// Returns the directory in which the new data is made.
    #[must_use]
    pub fn unfinished(self, data_dir: &Path) -> PathBuf {
        data_dir.join(match self {
            Self::IntoEtcd => "etcd.migrating",
            Self::IntoEmbedded => "store.migrating",
            Self::Reset => "etcd.resetting",
        })
    }

    fn complete(self, data_dir: &Path) -> PathBuf {
        data_dir.join(match self {
            Self::IntoEtcd => "etcd.migrated",
            Self::IntoEmbedded => "store.migrated",
            Self::Reset => "etcd.reset",
        })
    }

    /// Removes what an earlier attempt left.
    ///
    /// # Errors
    /// The directory cannot be removed.
    pub fn begin(self, data_dir: &Path) -> io::Result<PathBuf> {
        let dir = self.unfinished(data_dir);
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(dir),
        }
    }

    /// Makes the change effective: all files in [`Change::unfinished`] are synced. Returns where the data of before is.
    ///
    /// # Errors
    /// A rename failed. If it was a later one than the first, the change is effective and [`settle`] completes it.
    pub fn finish(self, data_dir: &Path) -> io::Result<PathBuf> {
        fs::rename(self.unfinished(data_dir), self.complete(data_dir))?;
        sync_names(data_dir)?;
        self.settle(data_dir).map(Option::unwrap_or_default)
    }

    /// Completes the change if it is effective.
    fn settle(self, data_dir: &Path) -> io::Result<Option<PathBuf>> {
        let complete = self.complete(data_dir);
        if !complete.exists() {
            return Ok(None);
        }
        let (replaced, before, to) = match self {
            Self::IntoEtcd => (store(data_dir), STORE, member_data(data_dir)),
            Self::IntoEmbedded => (data_dir.join(MEMBER), MEMBER, store(data_dir)),
            Self::Reset => (member_data(data_dir), MEMBER, member_data(data_dir)),
        };
        let aside = unused(data_dir, before);
        if replaced.exists() {
            fs::rename(&replaced, &aside)?;
            replaced.parent().map_or(Ok(()), sync_names)?;
            sync_names(data_dir)?;
        }
        let parent = to.parent().unwrap_or(data_dir);
        make_private_dir(parent)?;
        // A directory that a member never used as its data.
        if to.exists() {
            fs::rename(&to, unused(data_dir, if to.starts_with(data_dir.join(MEMBER)) { MEMBER } else { STORE }))?;
        }
        fs::rename(&complete, &to)?;
        sync_names(parent)?;
        sync_names(data_dir)?;
        Ok(Some(aside))
    }
}

/// Completes a change that was made effective before the process was killed. To be called by every process that opens the
/// data, after it has locked the data directory.
///
/// # Errors
/// A rename failed.
pub fn settle(data_dir: &Path) -> io::Result<()> {
    for change in Change::ALL {
        if let Some(aside) = change.settle(data_dir)? {
            tracing::info!(before = %aside.display(), "completed an interrupted move of the data");
        }
    }
    Ok(())
}

/// Returns the directory of the embedded store.
#[must_use]
pub fn store(data_dir: &Path) -> PathBuf {
    data_dir.join(STORE)
}

/// Returns etcd's `--data-dir`.
#[must_use]
pub fn member_data(data_dir: &Path) -> PathBuf {
    data_dir.join(MEMBER).join(MEMBER_DATA)
}

/// Returns the directory of the log below etcd's `--data-dir`.
#[must_use]
pub fn wal(member_data: &Path) -> PathBuf {
    member_data.join("member").join("wal")
}

/// Reports whether the member has a log, so that it has been started with its data.
#[must_use]
pub fn has_member(data_dir: &Path) -> bool {
    wal(&member_data(data_dir)).exists()
}

/// Reports whether there is an embedded store.
#[must_use]
pub fn has_store(data_dir: &Path) -> bool {
    store(data_dir).exists()
}

/// Returns a name for the data of before that is not used yet.
fn unused(data_dir: &Path, what: &str) -> PathBuf {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    (since..).map(|at| data_dir.join(format!("{what}.before-{at}"))).find(|name| !name.exists()).unwrap_or_default()
}

/// Syncs all files and names below a directory.
///
/// # Errors
/// The disk's.
pub fn sync_all(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            sync_all(&path)?;
        } else {
            kelson_platform::files::open_to_sync(&path)?.sync_all()?;
        }
    }
    sync_names(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(dir: &Path, content: &str) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("file"), content).unwrap();
    }

    fn read(dir: &Path) -> Option<String> {
        fs::read_to_string(dir.join("file")).ok()
    }

    /// Every state of the directories in which a kill between two renames can leave a change, with its three steps.
    #[test]
    fn a_change_that_was_killed_between_two_renames_is_completed() {
        for change in Change::ALL {
            for steps in 0..=3 {
                let dir = tempfile::tempdir().unwrap();
                let at = dir.path();
                let (old, new, before) = match change {
                    Change::IntoEtcd => (store(at), member_data(at), STORE),
                    Change::IntoEmbedded => (at.join(MEMBER), store(at), MEMBER),
                    Change::Reset => (member_data(at), member_data(at), MEMBER),
                };
                make(&old, "old");
                make(&change.unfinished(at), "new");
                if steps >= 1 {
                    fs::rename(change.unfinished(at), change.complete(at)).unwrap();
                }
                if steps >= 2 {
                    fs::rename(&old, at.join(format!("{before}.before-1"))).unwrap();
                }
                if steps == 3 {
                    fs::create_dir_all(new.parent().unwrap()).unwrap();
                    fs::rename(change.complete(at), &new).unwrap();
                }
                settle(at).unwrap();
                settle(at).unwrap();
                let kept = fs::read_dir(at)
                    .unwrap()
                    .filter_map(Result::ok)
                    .find(|e| e.file_name().to_string_lossy().starts_with(&format!("{before}.before-")));
                if steps == 0 {
                    assert_eq!((read(&old).as_deref(), kept.is_none()), (Some("old"), true), "{change:?}");
                    let aside = change.finish(at).unwrap();
                    assert_eq!((read(&new).as_deref(), read(&aside).as_deref()), (Some("new"), Some("old")));
                } else {
                    assert_eq!(read(&new).as_deref(), Some("new"), "{change:?} after {steps} steps");
                    assert_eq!(read(&kept.expect("the data of before").path()).as_deref(), Some("old"));
                }
                assert!(!change.complete(at).exists());
            }
        }
    }

    #[test]
    fn what_an_attempt_left_is_removed_and_the_data_stays() {
        let dir = tempfile::tempdir().unwrap();
        make(&store(dir.path()), "old");
        make(&Change::IntoEtcd.unfinished(dir.path()), "half");
        settle(dir.path()).unwrap();
        assert!(!Change::IntoEtcd.begin(dir.path()).unwrap().exists());
        assert_eq!(read(&store(dir.path())).as_deref(), Some("old"));
        assert!(has_store(dir.path()) && !has_member(dir.path()));
    }
}
