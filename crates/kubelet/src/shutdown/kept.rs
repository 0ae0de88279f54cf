//! When the last shutdown of the node began and ended, on disk: the kubelet that starts after it shows both as metrics, under
//! upstream's file name and form.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The file below the kubelet's directory.
const FILE: &str = "graceful_node_shutdown_state";
/// More than the file ever has.
const BYTES_MAX: u64 = 4096;

/// When pods began to end, and when they had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// The first pods were told to end.
    #[serde(rename = "startTime", default, skip_serializing_if = "Option::is_none")]
    pub began: Option<Timestamp>,
    /// All had ended, or their time was over.
    #[serde(rename = "endTime", default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
}

/// What the kubelet before has left; nothing, where it left nothing or what it left cannot be read.
pub fn read(root_dir: &Path) -> Times {
    let file = root_dir.join(FILE);
    let text = std::fs::metadata(&file).ok().filter(|m| m.len() <= BYTES_MAX).and_then(|_| std::fs::read(&file).ok());
    text.and_then(|t| serde_json::from_slice(&t).ok()).unwrap_or_default()
}

/// Puts the times in the place of the ones before, whole or not at all.
///
/// # Errors
/// The system's reason.
pub fn write(root_dir: &Path, times: Times) -> std::io::Result<()> {
    use std::io::Write as _;
    let aside = root_dir.join(format!("{FILE}.new"));
    let mut file = std::fs::File::create(&aside)?;
    file.write_all(&serde_json::to_vec(&times)?)?;
    // The machine is about to go down.
    file.sync_all()?;
    std::fs::rename(aside, root_dir.join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_damage_is_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path()), Times::default());
        let at = |s| Timestamp::from_second(s).ok();
        for times in [Times { began: at(5), ended: None }, Times { began: at(5), ended: at(9) }] {
            write(dir.path(), times).expect("written");
            assert_eq!(read(dir.path()), times);
        }
        let upstream = r#"{"startTime":"2026-01-02T03:04:05.123456789Z","endTime":"2026-01-02T03:04:09+01:00"}"#;
        std::fs::write(dir.path().join(FILE), upstream).expect("written");
        assert!(read(dir.path()).ended.is_some());
        std::fs::write(dir.path().join(FILE), "{").expect("written");
        assert_eq!(read(dir.path()), Times::default());
    }
}
