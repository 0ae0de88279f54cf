//! Checkpoint of prepared claims and their pods, under upstream's file name (`dra_manager_state`) and in its format.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::prepared::KnownClaim;

/// File name in the kubelet's root directory.
pub const FILE: &str = "dra_manager_state";
const KIND: &str = "DRACheckpoint";
const VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

/// The file: a document as a string, and its checksum.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SummedText {
    data: String,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
struct ClaimsDocument {
    kind: String,
    #[serde(rename = "apiVersion")]
    version: String,
    #[serde(rename = "ClaimInfoStateList")]
    claims: Option<Vec<KnownClaim>>,
}

/// CRC-32 with the IEEE polynomial.
fn sum(text: &str) -> u32 {
    let step = |crc: u32, byte: u8| {
        let fold = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        (0..8).fold(crc ^ u32::from(byte), fold)
    };
    !text.bytes().fold(u32::MAX, step)
}

/// Reads the checkpoint; empty if there is none.
///
/// # Errors
/// The file is damaged or cannot be read.
pub fn read(dir: &Path) -> io::Result<Vec<KnownClaim>> {
    let text = match std::fs::read(dir.join(FILE)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let file: SummedText = serde_json::from_slice(&text).map_err(io::Error::other)?;
    if sum(&file.data) != file.checksum {
        return Err(io::Error::other("checkpoint is corrupted"));
    }
    let document: ClaimsDocument = serde_json::from_str(&file.data).map_err(io::Error::other)?;
    Ok(document.claims.unwrap_or_default())
}

/// Writes the checkpoint atomically.
///
/// # Errors
/// The error of the system call.
pub fn write(dir: &Path, claims: Vec<KnownClaim>) -> io::Result<()> {
    let claims = Some(claims).filter(|c| !c.is_empty());
    let document = ClaimsDocument { kind: KIND.into(), version: VERSION.into(), claims };
    let data = serde_json::to_string(&document).map_err(io::Error::other)?;
    let text = serde_json::to_vec(&SummedText { checksum: sum(&data), data }).map_err(io::Error::other)?;
    kelson_pki::write_secret(&dir.join(FILE), &text, true).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::prepared::{EmptyObject, ReadyByDriver};

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(sum("123456789"), 0xcbf4_3926);
        let dir = tempfile::tempdir().expect("a directory");
        assert!(read(dir.path()).expect("nothing").is_empty());
        let claim = KnownClaim {
            uid: "1".into(),
            name: "c".into(),
            namespace: "n".into(),
            pods: [("u".to_owned(), EmptyObject {})].into(),
            drivers: [("d".to_owned(), ReadyByDriver::default())].into(),
            is_ready: false,
        };
        write(dir.path(), vec![claim.clone()]).expect("written");
        assert_eq!(read(dir.path()).expect("whole"), [claim]);
        let text = std::fs::read_to_string(dir.path().join(FILE)).expect("a file");
        assert!(text.contains(r#"\"PodUIDs\":{\"u\":{}}"#), "{text}");
        std::fs::write(dir.path().join(FILE), text.replace("\\\"c\\\"", "\\\"x\\\"")).expect("a file");
        assert!(read(dir.path()).is_err(), "damaged");
    }
}
