//! Record of the last graceful shutdown on disk, under upstream's file name and in its format. The kubelet shows it as metrics after the
//! next start.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// File name in the kubelet's root directory.
const FILE: &str = "graceful_node_shutdown_state";
/// Maximum number of bytes that are read.
const BYTES_MAX: u64 = 4096;

/// Start and end of a graceful shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownTimes {
    /// When the first pods were ended.
    #[serde(rename = "startTime", default, skip_serializing_if = "Option::is_none")]
    pub began: Option<Timestamp>,
    /// When all pods had ended or their time was over.
    #[serde(rename = "endTime", default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
}

/// Reads the record; empty if there is none or it cannot be read.
pub fn read(root_dir: &Path) -> ShutdownTimes {
    let file = root_dir.join(FILE);
    let text = std::fs::metadata(&file).ok().filter(|m| m.len() <= BYTES_MAX).and_then(|_| std::fs::read(&file).ok());
    text.and_then(|t| serde_json::from_slice(&t).ok()).unwrap_or_default()
}

/// Replaces the record atomically.
///
/// # Errors
/// The error of the system call.
pub fn write(root_dir: &Path, times: ShutdownTimes) -> std::io::Result<()> {
    use std::io::Write as _;
    let aside = root_dir.join(format!("{FILE}.new"));
    let mut file = std::fs::File::create(&aside)?;
    file.write_all(&serde_json::to_vec(&times)?)?;
    // Needed because the machine is about to shut down.
    file.sync_all()?;
    std::fs::rename(aside, root_dir.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_round_trips_and_damage_is_ignored() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path()), ShutdownTimes::default());
        let at = |s| Timestamp::from_second(s).ok();
        for times in [ShutdownTimes { began: at(5), ended: None }, ShutdownTimes { began: at(5), ended: at(9) }] {
            write(dir.path(), times).expect("written");
            assert_eq!(read(dir.path()), times);
        }
        let upstream = r#"{"startTime":"2026-01-02T03:04:05.123456789Z","endTime":"2026-01-02T03:04:09+01:00"}"#;
        std::fs::write(dir.path().join(FILE), upstream).expect("written");
        assert!(read(dir.path()).ended.is_some());
        std::fs::write(dir.path().join(FILE), "{").expect("written");
        assert_eq!(read(dir.path()), ShutdownTimes::default());
    }
}
