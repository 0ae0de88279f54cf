//! Periodic measurement of the usage of pods' volumes (upstream: `server/stats/volume_stat_calculator.go`). For volumes whose content the
//! kubelet creates, the content is counted; for all others, the file system.
#![allow(clippy::disallowed_methods, reason = "blocking: in a separate lane")]

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};
use kelson_meta::Clock;
use kelson_tasks::Lane;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

use super::persistent::claim_of;
use crate::pod;

/// A separate lane, because a network file system may hang.
static MEASURING: Lane = Lane::new("volume-usage", 2);
/// Timeout per pod; then its volumes are skipped.
const MEASURE_MAX: Duration = Duration::from_secs(30);
/// Delay before the first measurement.
const FIRST: Duration = Duration::from_secs(10);
/// Maximum number of counted entries per directory, so that one pod does not delay the others.
const ENTRIES_MAX: usize = 1_000_000;
/// Maximum counted depth of a tree, because each level holds an open handle.
const DEPTH_MAX: usize = 256;

/// Usage of one volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Name of the volume in the pod.
    pub name: String,
    /// Namespace and name of its claim.
    pub claim: Option<(String, String)>,
    /// Time of the measurement.
    pub at: Timestamp,
    /// Bytes and inodes, in total and used.
    pub room: VolumeSpace,
    /// Whether the kubelet created the content, which then counts as the pod's ephemeral storage.
    pub is_own: bool,
}

/// Bytes and inodes of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeSpace {
    /// Bytes of the file system.
    pub capacity: u64,
    /// Bytes available to unprivileged users.
    pub available: u64,
    /// Number of used bytes.
    pub used: u64,
    /// Inodes of the file system; 0 if it has no inode table.
    pub inodes: u64,
    /// Number of free inodes.
    pub inodes_free: u64,
    /// Number of used inodes.
    pub inodes_used: u64,
}

/// Path of a volume and how it is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
struct VolumePlace {
    name: String,
    claim: Option<(String, String)>,
    path: PathBuf,
    /// Whether only the content counts, instead of the file system.
    is_own: bool,
}

#[derive(Default)]
struct MeasuredVolumes {
    places: HashMap<String, Vec<VolumePlace>>,
    usages: HashMap<String, Vec<VolumeUsage>>,
}

/// Usage of all pods' volumes. Clones share the state.
#[derive(Clone, Default)]
pub struct VolumeUsages {
    shared: Arc<Mutex<MeasuredVolumes>>,
}

/// Returns whether the kubelet creates the volume's content.
fn is_own(v: &Volume) -> bool {
    v.empty_dir.is_some()
        || v.config_map.is_some()
        || v.secret.is_some()
        || v.downward_api.is_some()
        || v.projected.is_some()
}

fn claim(pod: &Pod, v: &Volume) -> Option<(String, String)> {
    claim_of(pod, v).map(|(name, ..)| (pod::namespace(pod).to_owned(), name))
}

impl VolumeUsages {
    /// Adds a pod's volumes; `path` returns the host path of each.
    pub(super) fn set_up(&self, pod: &Pod, path: impl Fn(&str) -> Option<PathBuf>) {
        let place = |v: &Volume| {
            // A hostPath volume belongs to the host and is not measured.
            let path = path(&v.name).filter(|_| v.host_path.is_none())?;
            Some(VolumePlace { name: v.name.clone(), claim: claim(pod, v), path, is_own: is_own(v) })
        };
        let all = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).filter_map(place).collect();
        self.shared.lock().places.insert(pod::uid(pod).to_owned(), all);
    }

    /// Removes a pod's volumes.
    pub(super) fn forget(&self, uid: &str) {
        let mut shared = self.shared.lock();
        shared.places.remove(uid);
        shared.usages.remove(uid);
    }

    /// Measures all volumes periodically until the task is aborted.
    pub async fn run(self, every: Duration, clock: Arc<dyn Clock>) {
        tokio::time::sleep(FIRST.min(every)).await;
        loop {
            self.measure(&*clock).await;
            tokio::time::sleep(every).await;
        }
    }

    /// Measures all volumes once.
    pub async fn measure(&self, clock: &dyn Clock) {
        let pods: Vec<(String, Vec<VolumePlace>)> =
            self.shared.lock().places.iter().map(|(uid, places)| (uid.clone(), places.clone())).collect();
        for (uid, places) in pods {
            let work = MEASURING.run(move || places.into_iter().map(|p| (measured(&p.path, p.is_own), p)).collect());
            let done: Vec<(Option<VolumeSpace>, VolumePlace)> = match tokio::time::timeout(MEASURE_MAX, work).await {
                Ok(Ok(done)) => done,
                _ => continue,
            };
            let at = clock.now();
            let usage = |(room, p): (Option<VolumeSpace>, VolumePlace)| {
                Some(VolumeUsage { name: p.name, claim: p.claim, at, room: room?, is_own: p.is_own })
            };
            let mut shared = self.shared.lock();
            // A pod whose volumes were removed meanwhile is skipped.
            if shared.places.contains_key(&uid) {
                shared.usages.insert(uid, done.into_iter().filter_map(usage).collect());
            }
        }
    }

    /// Returns the last measurement of a pod's volumes.
    pub fn of(&self, uid: &str) -> Vec<VolumeUsage> {
        self.shared.lock().usages.get(uid).cloned().unwrap_or_default()
    }

    /// Returns the last measurement of all claims by namespace and name; each claim once, even if several pods use it.
    pub fn claims(&self) -> BTreeMap<(String, String), VolumeSpace> {
        let shared = self.shared.lock();
        let all = shared.usages.values().flatten();
        all.filter_map(|u| Some((u.claim.clone()?, u.room))).collect()
    }
}

fn measured(path: &Path, is_own: bool) -> Option<VolumeSpace> {
    let s = rustix::fs::statvfs(path).ok()?;
    let (capacity, free) = (s.f_blocks * s.f_frsize, s.f_bfree * s.f_frsize);
    let mut room = VolumeSpace {
        capacity,
        available: s.f_bavail * s.f_frsize,
        used: capacity.saturating_sub(free),
        inodes: s.f_files,
        inodes_free: s.f_ffree,
        inodes_used: s.f_files.saturating_sub(s.f_ffree),
    };
    if is_own {
        (room.used, room.inodes_used) = content(path);
    }
    Some(room)
}

/// Bytes and inodes of a directory and its contents. Each directory is opened relative to its parent's handle without following links, so
/// that a link of a container has no effect.
pub fn content(root: &Path) -> (u64, u64) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(root) = rustix::fs::open(root, flags, Mode::empty()) else { return (0, 0) };
    let own = rustix::fs::fstat(&root).map_or(0, |s| bytes_of(&s));
    let mut counted = ContentCount { bytes: own, inodes: 1, entries: 0 };
    counted.directory(&root, 0);
    (counted.bytes, counted.inodes)
}

/// Disk usage in bytes of a directory and its contents, without following links.
pub fn disk_usage(root: &Path) -> u64 {
    content(root).0
}

fn bytes_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0) * 512
}

struct ContentCount {
    bytes: u64,
    inodes: u64,
    entries: usize,
}

impl ContentCount {
    fn directory(&mut self, at: &OwnedFd, depth: usize) {
        let Ok(entries) = Dir::read_from(at) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name == c"." || name == c".." || self.entries >= ENTRIES_MAX {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            self.bytes += bytes_of(&stat);
            self.inodes += 1;
            self.entries += 1;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && depth < DEPTH_MAX {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                if let Ok(below) = rustix::fs::openat(at, name, flags, Mode::empty()) {
                    self.directory(&below, depth + 1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn links_are_not_followed_when_measuring() {
        let dir = tempfile::tempdir().expect("a directory");
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        std::fs::create_dir_all(volume.join("a/b")).expect("directories");
        std::fs::create_dir_all(&outside).expect("a directory");
        std::fs::write(outside.join("large"), vec![1; 1_000_000]).expect("a file");
        std::fs::write(volume.join("a/b/f"), vec![1; 5_000]).expect("a file");
        std::os::unix::fs::symlink(&outside, volume.join("a/link")).expect("a link");
        let (bytes, inodes) = content(&volume);
        assert_eq!(inodes, 5, "the root, a, b, f and the link itself");
        assert!((5_000..500_000).contains(&bytes), "{bytes}");
    }

    #[tokio::test]
    async fn volumes_are_measured_until_they_are_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        for name in ["scratch", "data", "etc"] {
            std::fs::create_dir(at(name)).expect("a directory");
        }
        std::fs::write(at("scratch").join("f"), vec![1; 100_000]).expect("a file");
        let volumes = json!([{"name": "scratch", "emptyDir": {}}, {"name": "etc", "hostPath": {"path": "/etc"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "late", "configMap": {"name": "m"}}]);
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [], "volumes": volumes}}))
        .expect("a pod");
        let usages = VolumeUsages::default();
        usages.set_up(&pod, |name| Some(at(name)).filter(|path| path.exists()));
        assert!(usages.of("u").is_empty(), "not yet");
        usages.measure(&kelson_meta::SystemClock).await;
        let all = usages.of("u");
        let names: Vec<&str> = all.iter().map(|u| u.name.as_str()).collect();
        assert_eq!(names, ["scratch", "data"], "neither what is the host's nor what is not there");
        let (scratch, data) = (&all[0], &all[1]);
        assert!((100_000..200_000).contains(&scratch.room.used) && scratch.room.inodes_used == 2, "{scratch:?}");
        assert!(data.room.capacity > 0 && data.room.capacity >= data.room.available, "{data:?}");
        assert_eq!(data.claim, Some(("n".into(), "c".into())));
        assert_eq!(usages.claims().keys().collect::<Vec<_>>(), [&("n".to_owned(), "c".to_owned())]);
        usages.forget("u");
        assert!(usages.of("u").is_empty() && usages.claims().is_empty());
    }
}
