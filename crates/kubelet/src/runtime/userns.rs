//! User namespaces of pods (`hostUsers: false`, KEP-127). Each pod gets a separate range of host IDs, which is recorded in a file of the
//! pod's directory, so that two pods never share a range, also after restarts (upstream: `pkg/kubelet/userns`).
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kelson_cri::proto as cri;
use kelson_tasks::FILES;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::config::PodDirs;

/// Name of the record in a pod's directory.
const FILE: &str = "userns";

/// A pod's range: its IDs from 0 on are the host IDs from `host` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdRange {
    /// First host ID, a multiple of the length.
    pub host: u32,
    /// Number of IDs.
    pub length: u32,
}

/// Number of IDs of the kernel.
const IDS: u64 = 1 << 32;

/// Number of ranges of this length that can be assigned; the first one is the host's own.
fn ranges(length: u32) -> u64 {
    (IDS / u64::from(length.max(1))).saturating_sub(1)
}

/// Checks that each of `pods_max` pods can have a range of this length.
///
/// # Errors
/// There are too few IDs.
pub fn enough(length: u32, pods_max: u32) -> Result<(), String> {
    if ranges(length) < u64::from(pods_max) {
        return Err(format!("kubelet user assigned IDs are not enough to support {pods_max} pods"));
    }
    Ok(())
}

impl IdRange {
    /// Converts to CRI's ID mapping.
    pub fn mapping(self) -> cri::IdMapping {
        cri::IdMapping { host_id: self.host, container_id: 0, length: self.length }
    }

    /// Returns the user namespace for sandbox and containers.
    pub fn namespace(self) -> cri::UserNamespace {
        let mode = cri::NamespaceMode::Pod as i32;
        cri::UserNamespace { mode, uids: vec![self.mapping()], gids: vec![self.mapping()] }
    }
}

/// The record, with upstream's field names.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    uid_mappings: Vec<RecordedMapping>,
    gid_mappings: Vec<RecordedMapping>,
}

#[derive(Serialize, Deserialize, Clone)]
#[serde(rename_all = "camelCase")]
struct RecordedMapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

#[derive(Debug, Default)]
struct AssignedRanges {
    by_pod: HashMap<String, IdRange>,
    hosts: BTreeSet<u32>,
}

/// Assignment of ID ranges to this node's pods. Clones share the state.
#[derive(Clone, Debug)]
pub struct UserNamespaces {
    dirs: PodDirs,
    ranges_max: u32,
    length: u32,
    taken: Arc<Mutex<AssignedRanges>>,
    /// Path of an unreadable record. Its range is unknown, so no range is assigned while it exists.
    damaged: Option<PathBuf>,
}

impl UserNamespaces {
    /// Reads the records of existing pods. `ranges_max`: maximum number of pods; `length`: IDs per pod.
    pub fn open(dirs: PodDirs, ranges_max: u32, length: u32) -> Self {
        let mut taken = AssignedRanges::default();
        let mut damaged = None;
        for entry in std::fs::read_dir(dirs.pods()).into_iter().flatten().flatten() {
            let path = entry.path().join(FILE);
            match read(&path, length) {
                Ok(None) => {}
                Ok(Some(range)) => {
                    taken.hosts.insert(range.host);
                    taken.by_pod.insert(entry.file_name().to_string_lossy().into_owned(), range);
                }
                Err(e) => {
                    tracing::error!(file = %path.display(), error = %e, "cannot read a user namespace record; remove the file to assign user namespaces again");
                    damaged = Some(path);
                }
            }
        }
        Self { dirs, ranges_max, length, taken: Arc::new(Mutex::new(taken)), damaged }
    }

    /// Returns the pod's range. Assigns and records a free one if the pod has none.
    ///
    /// # Errors
    /// No range is free or the record cannot be written. The pod must not start then.
    pub async fn get(&self, uid: &str) -> Result<IdRange, String> {
        let (own, uid) = (self.clone(), uid.to_owned());
        FILES.run(move || own.take(&uid)).await.map_err(|e| e.to_string())?
    }

    fn take(&self, uid: &str) -> Result<IdRange, String> {
        let range = {
            let mut taken = self.taken.lock();
            if let Some(range) = taken.by_pod.get(uid) {
                return Ok(*range);
            }
            if let Some(path) = &self.damaged {
                return Err(format!("the user namespace record {} cannot be read", path.display()));
            }
            let most = u32::try_from(ranges(self.length)).unwrap_or(u32::MAX);
            let starts = (1..=self.ranges_max.min(most)).filter_map(|n| n.checked_mul(self.length));
            let free = starts.into_iter().find(|host| !taken.hosts.contains(host));
            let host = free.ok_or("could not find an empty slot to allocate a user namespace")?;
            taken.hosts.insert(host);
            let range = IdRange { host, length: self.length };
            taken.by_pod.insert(uid.to_owned(), range);
            range
        };
        let written = write(&self.dirs.pod(uid), range);
        written
            .inspect_err(|_| self.forget(uid))
            .map_err(|e| format!("cannot write the user namespace record: {e}"))?;
        Ok(range)
    }

    /// Releases a pod's range after its containers and its directory are gone.
    pub fn forget(&self, uid: &str) {
        let mut taken = self.taken.lock();
        if let Some(range) = taken.by_pod.remove(uid) {
            taken.hosts.remove(&range.host);
        }
    }
}

/// Reads a record. A range of another length is an error, because it would overlap with ranges that are assigned now.
fn read(path: &Path, length: u32) -> io::Result<Option<IdRange>> {
    let text = match std::fs::read(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let record: Record = serde_json::from_slice(&text)?;
    let valid = |m: &[RecordedMapping]| match m {
        [m] if m.container_id == 0 && m.length == length && m.host_id.is_multiple_of(length) => Some(m.host_id),
        _ => None,
    };
    match (valid(&record.uid_mappings), valid(&record.gid_mappings)) {
        (Some(uids), Some(gids)) if uids == gids && uids != 0 => Ok(Some(IdRange { host: uids, length })),
        _ => Err(io::Error::other("not an ID mapping of the configured length")),
    }
}

fn write(dir: &Path, range: IdRange) -> io::Result<()> {
    let mapping = vec![RecordedMapping { host_id: range.host, container_id: 0, length: range.length }];
    let record = Record { uid_mappings: mapping.clone(), gid_mappings: mapping };
    let tmp = dir.join(format!("{FILE}.tmp"));
    std::fs::create_dir_all(dir)?;
    std::fs::write(&tmp, serde_json::to_vec(&record)?)?;
    std::fs::rename(tmp, dir.join(FILE))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn open(dir: &Path, max: u32) -> UserNamespaces {
        of_length(dir, max, crate::config::IDS_PER_POD)
    }

    fn of_length(dir: &Path, max: u32, length: u32) -> UserNamespaces {
        UserNamespaces::open(crate::config::Config::new("n", dir).dirs(), max, length)
    }

    #[test]
    fn ranges_of_another_length() {
        let dir = tempfile::tempdir().expect("tempdir");
        let long = of_length(dir.path(), 9, 131_072);
        let (a, b) = (long.take("a").expect("a"), long.take("b").expect("b"));
        assert_eq!((a.host, a.mapping().length, b.host), (131_072, 131_072, 262_144));
        let usual = open(dir.path(), 9);
        assert!(usual.take("c").expect_err("the old ranges are longer").contains("cannot be read"));
        assert_eq!(of_length(dir.path(), 9, 131_072).take("b"), Ok(b), "after a restart");
        assert_eq!((enough(65_536, 65_535), enough(1 << 31, 1)), (Ok(()), Ok(())));
        assert!(enough(65_536, 65_536).is_err() && enough(1 << 31, 2).expect_err("one").contains("2 pods"));
        let last = of_length(&dir.path().join("last"), u32::MAX, 1 << 31);
        assert_eq!(last.take("a").map(|r| r.host), Ok(1 << 31));
        assert!(last.take("b").is_err());
    }

    #[test]
    fn no_two_pods_share_a_range_after_a_restart_either() {
        let dir = tempfile::tempdir().expect("tempdir");
        let all = open(dir.path(), 2);
        let (a, b) = (all.take("a").expect("a"), all.take("b").expect("b"));
        assert_eq!((a.host, b.host), (65_536, 131_072));
        assert_eq!(all.take("a"), Ok(a), "the same for a second container");
        assert!(all.take("c").expect_err("all taken").starts_with("could not find an empty slot"));
        let again = open(dir.path(), 2);
        assert_eq!(again.take("b"), Ok(b));
        assert!(again.take("c").is_err());
        std::fs::remove_dir_all(dir.path().join("pods/a")).expect("removed");
        again.forget("a");
        assert_eq!(again.take("c"), Ok(a));
    }

    #[test]
    fn an_unreadable_record_prevents_new_ranges() {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir_all(dir.path().join("pods/a")).expect("mkdir");
        std::fs::write(dir.path().join("pods/a/userns"), "{}").expect("write");
        assert!(open(dir.path(), 9).take("b").expect_err("damaged").contains("cannot be read"));
    }
}
