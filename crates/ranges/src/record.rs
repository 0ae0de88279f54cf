//! Small records in JSON, each a file that is replaced at once.
#![allow(clippy::disallowed_methods, reason = "blocking: callers are in a lane")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use kelson_platform::files;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::RangesError;

/// Longest record read.
const BYTES_MAX: u64 = 64 << 10;

/// The record in a file; `None`: there is no such file.
///
/// # Errors
/// When it cannot be read, or is no such record.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, RangesError> {
    let file = match File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(RangesError::io(path.display().to_string()))?,
    };
    let mut text = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut text).map_err(RangesError::io(path.display().to_string()))?;
    let record = serde_json::from_slice(&text);
    record.map(Some).map_err(|e| RangesError::Refused(format!("{}: {e}", path.display())))
}

/// Replaces a file at once, so that nobody reads half of it; `sync`: so that a power cut does not take it back.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, record: &impl Serialize, sync: bool) -> Result<(), RangesError> {
    let temporary = path.with_extension("tmp");
    let write = || {
        let text = serde_json::to_vec_pretty(record).map_err(std::io::Error::other)?;
        let mut file = File::create(&temporary)?;
        file.write_all(&text)?;
        if sync {
            file.sync_all()?;
        }
        std::fs::rename(&temporary, path)?;
        match path.parent().filter(|_| sync) {
            Some(dir) => files::sync_names(dir),
            None => Ok(()),
        }
    };
    write().map_err(RangesError::io(format!("write {}", path.display())))
}
