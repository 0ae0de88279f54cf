//! Writes a snapshot of everything while commits continue.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use kelson_platform::files::private;

use super::record::{self, Record};
use super::{DiskError, files, frame};

/// A snapshot that is being written. Dropping it before the end removes it.
#[derive(Debug)]
pub struct SnapshotWriter {
    dir: PathBuf,
    number: u64,
    part: PathBuf,
    file: BufWriter<File>,
    syncs: bool,
    records: u64,
    bytes: u64,
}

impl SnapshotWriter {
    pub(super) fn create(dir: &Path, number: u64, syncs: bool) -> Result<Self, DiskError> {
        let part = files::snapshot(dir, number).with_extension("part");
        let open = private(OpenOptions::new().write(true).create(true).truncate(true)).open(&part);
        let file = BufWriter::new(open.map_err(files::fault("open", &part))?);
        Ok(Self { dir: dir.to_path_buf(), number, part, file, syncs, records: 0, bytes: 0 })
    }

    /// Removes the incomplete snapshot. If that fails, the next start removes it.
    pub(super) fn discard(self) {
        let _ = fs::remove_file(&self.part);
    }

    /// Adds records. Versions of one key come in order; the first record is the identity.
    ///
    /// # Errors
    /// An I/O error; the snapshot must not be used then.
    pub fn add(&mut self, records: &[Record]) -> Result<(), DiskError> {
        let mut bytes = Vec::new();
        let framed = frame::append(&mut bytes, |into| record::encode(records, into));
        let framed = framed.map_err(|_| std::io::Error::other("frame is larger than 4 GiB"));
        framed.and_then(|()| self.file.write_all(&bytes)).map_err(files::fault("write", &self.part))?;
        self.records += records.len() as u64;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Completes the snapshot and removes the files it replaces; returns its size in bytes.
    ///
    /// # Errors
    /// An I/O error; older files still hold everything.
    pub fn finish(mut self) -> Result<u64, DiskError> {
        self.add(&[Record::end(self.records)])?;
        let fault = || files::fault("write", &self.part);
        self.file.flush().map_err(fault())?;
        if self.syncs {
            self.file.get_ref().sync_all().map_err(fault())?;
        }
        let path = files::snapshot(&self.dir, self.number);
        fs::rename(&self.part, &path).map_err(files::fault("name", &path))?;
        if self.syncs {
            files::sync_names(&self.dir)?;
        }
        files::remove_before(&self.dir, self.number)?;
        Ok(self.bytes)
    }
}
