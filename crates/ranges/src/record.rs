//! Small JSON records, each in a file that is replaced atomically.
#![allow(clippy::disallowed_methods, reason = "blocking: callers are in a lane")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use kelson_platform::files;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::RangesError;

/// The maximum size of a record in bytes.
const BYTES_MAX: u64 = 64 << 10;

/// Returns the record in a file, or `None` if the file does not exist.
///
/// # Errors
/// Fails if the file cannot be read or decoded.
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

/// Replaces a file atomically. With `sync` the replacement survives a power failure.
///
/// # Errors
/// Fails if the file cannot be written.
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
