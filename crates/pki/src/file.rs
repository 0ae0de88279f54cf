//! Files with secrets. They are written atomically and readable only by their owner.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files, or at start")]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use kelson_platform::files;

use crate::PkiError;

/// The size limit of a file. Certificates and keys are a few kilobytes.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// Makes an error that names the file.
pub(crate) fn at(path: &Path, source: std::io::Error) -> PkiError {
    PkiError::File { path: path.to_owned(), source }
}

/// Writes `content` to `path` with mode 0600, atomically: a reader sees the old file or the new one. With `sync` it is
/// durable; content that can be created again at the next start does not need that.
pub fn write_secret(path: &Path, content: &[u8], sync: bool) -> Result<(), PkiError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".tmp{}", std::process::id()));
    let temporary = path.with_file_name(name);
    let write = || -> std::io::Result<()> {
        let mut f = files::private(OpenOptions::new().write(true).create(true).truncate(true)).open(&temporary)?;
        // A file that a killed process left may have other permissions.
        files::make_private(&temporary)?;
        f.write_all(content)?;
        if sync {
            f.sync_all()?;
        }
        fs::rename(&temporary, path)?;
        if sync && let Some(dir) = path.parent() {
            files::sync_names(dir)?;
        }
        Ok(())
    };
    write().map_err(|e| {
        let _ = fs::remove_file(&temporary);
        at(path, e)
    })
}

/// Reads a file. Returns `None` if it does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(at(path, e)),
        Ok(m) if m.len() > FILE_MAX_BYTES => {
            return Err(PkiError::malformed(path.display().to_string(), "file is too large"));
        }
        Ok(_) => {}
    }
    fs::read_to_string(path).map(Some).map_err(|e| at(path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_and_replacement() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.key");
        write_secret(&path, b"one", false).unwrap();
        write_secret(&path, b"two", true).unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), "two");
        assert_eq!(files::open_to_others(&path), None);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
        assert!(read(&dir.path().join("none")).unwrap().is_none());
        assert!(write_secret(&dir.path().join("no/dir"), b"", false).is_err());
    }
}
