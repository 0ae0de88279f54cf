//! Metadata beside the mount of a CSI volume (`vol_data.json`, in the format of upstream's kubelet), from which a restarted kubelet can
//! unmount it. Also computes names that other components compute as well.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files; removals have a separate lane")]

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Name of the directory of CSI volumes in a pod's directory.
pub(super) const PLUGIN: &str = "kubernetes.io~csi";
/// Name of the metadata file beside a mount.
pub(super) const DATA_FILE: &str = "vol_data.json";

/// Content of `vol_data.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VolumeData {
    pub(super) driver_name: String,
    pub(super) volume_handle: String,
    #[serde(rename = "specVolID", default)]
    pub(super) spec_vol_id: String,
    #[serde(default)]
    pub(super) node_name: String,
    #[serde(rename = "attachmentID", default)]
    pub(super) attachment_id: String,
    /// Either `Persistent` or `Ephemeral`.
    #[serde(default)]
    pub(super) volume_lifecycle_mode: String,
}

pub(super) fn sum(text: &str) -> String {
    use std::fmt::Write as _;
    Sha256::digest(text).iter().fold(String::new(), |mut out, byte| {
        // Writing to a `String` cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

pub(super) fn attachment_name(driver: &str, handle: &str, node: &str) -> String {
    format!("csi-{}", sum(&format!("{handle}{driver}{node}")))
}

pub(super) fn write_data(dir: &Path, file: &Path, data: &VolumeData) -> Result<(), String> {
    use std::os::unix::fs::DirBuilderExt as _;
    let text = |e: std::io::Error| e.to_string();
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(dir).map_err(text)?;
    let bytes = serde_json::to_vec(data).map_err(|e| e.to_string())?;
    std::fs::write(file, bytes).map_err(text)
}

/// Returns the directories of a pod's CSI volumes with their metadata.
pub(super) fn volumes_of(pod: &Path) -> Vec<(PathBuf, VolumeData)> {
    let all = std::fs::read_dir(pod.join("volumes").join(PLUGIN)).into_iter().flatten().flatten();
    let read = |e: std::fs::DirEntry| {
        let bytes = std::fs::read(e.path().join(DATA_FILE)).ok()?;
        Some((e.path(), serde_json::from_slice(&bytes).ok()?))
    };
    all.filter_map(read).collect()
}

/// Removes metadata and directory with calls that remove only empty directories, so that something still mounted is never deleted.
pub(super) fn remove_data(dir: &Path) -> Result<(), String> {
    let gone = |e: std::io::Error| if e.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(e.to_string()) };
    let target = dir.join("mount");
    // The target of a block volume is a file, which is empty if a driver was interrupted.
    match std::fs::symlink_metadata(&target) {
        Ok(found) if found.is_file() && found.len() == 0 => std::fs::remove_file(&target).or_else(gone)?,
        _ => std::fs::remove_dir(&target).or_else(gone)?,
    }
    std::fs::remove_file(dir.join(DATA_FILE)).or_else(gone)?;
    std::fs::remove_dir(dir).or_else(gone)
}

pub(super) fn remove_staging(path: &Path) -> Result<(), String> {
    let gone = |e: std::io::Error| if e.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(e.to_string()) };
    std::fs::remove_dir(path).or_else(gone)?;
    std::fs::remove_file(path.with_file_name(DATA_FILE)).or_else(gone)?;
    path.parent().map_or(Ok(()), |p| std::fs::remove_dir(p).or_else(gone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_beside_a_mount() {
        let dir = tempfile::tempdir().expect("tempdir");
        let volume = dir.path().join("volumes").join(PLUGIN).join("pv");
        let data = VolumeData {
            driver_name: "d".into(),
            volume_handle: "h".into(),
            spec_vol_id: "pv".into(),
            node_name: "n".into(),
            attachment_id: attachment_name("d", "h", "n"),
            volume_lifecycle_mode: "Persistent".into(),
        };
        write_data(&volume, &volume.join(DATA_FILE), &data).expect("written");
        let text = std::fs::read_to_string(volume.join(DATA_FILE)).expect("read");
        for key in ["driverName", "volumeHandle", "specVolID", "nodeName", "attachmentID", "volumeLifecycleMode"] {
            assert!(text.contains(&format!("\"{key}\"")), "{text}");
        }
        assert_eq!(volumes_of(dir.path()), [(volume.clone(), data)]);
        std::fs::write(volume.join("mount"), "a file, so that the directory is not empty").expect("write");
        assert!(remove_data(&volume).is_err(), "what is left there stays");
        std::fs::remove_file(volume.join("mount")).expect("removed");
        assert_eq!(remove_data(&volume), Ok(()));
        assert!(!volume.exists());
    }
}
