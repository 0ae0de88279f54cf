//! The content of an engine at the opening of a store.

use std::collections::HashMap;
use std::sync::Arc;

use crate::at_rest::{AtRest, SealError, Writer};
use crate::engine::format::{self, Decoder, FORMAT, FORMAT_UNCHECKED, Mark, Stored};
use crate::engine::{Engine, EngineError, Entry};
use crate::key::Resource;
use crate::locked::LockedRow;
use crate::record::Record;
use crate::samples::Samples;

/// The revision of a store that was never written to. It is not zero, because clients use zero for "any".
const REVISION_START: u64 = 1;

/// All stored records and marks.
pub(crate) struct Loaded {
    pub records: Vec<(Arc<Record>, Writer)>,
    /// The revision of the last change of each resource.
    pub floors: HashMap<Resource, u64>,
    pub revision: u64,
    pub reserved: u64,
    pub format: u64,
    has_format: bool,
    pub identity: Option<String>,
    pub running: String,
    /// Rows that cannot be decrypted now.
    pub locked_rows: Vec<LockedRow>,
    /// The resources of those rows, and why.
    pub locked: HashMap<Resource, SealError>,
}

impl Loaded {
    /// Applies one mark.
    fn mark(&mut self, mark: Mark) -> Result<(), EngineError> {
        match mark {
            Mark::Deleted(resource, revision) => self.raise(resource, revision),
            Mark::Format(found @ (FORMAT | FORMAT_UNCHECKED)) => {
                (self.format, self.has_format) = (found, true);
            }
            Mark::Format(found) => {
                return Err(EngineError::Format { found, oldest: FORMAT_UNCHECKED, expected: FORMAT });
            }
            Mark::Identity(identity) => self.identity = Some(identity),
            Mark::Reserved(revision) => self.reserved = revision,
            Mark::Running(boot) => self.running = boot,
        }
        Ok(())
    }

    fn raise(&mut self, resource: Resource, revision: u64) {
        let floor = self.floors.entry(resource).or_default();
        *floor = (*floor).max(revision);
    }
}

/// Reads and checks everything. Each record is packed as soon as it is read, so that not all of them are in memory in their full size
/// at the same time.
///
/// # Errors
/// What the engine says; a record that is damaged or that no provider can decrypt. A key service that is not available is no error: the
/// resource of the record is locked.
pub(crate) fn load(
    engine: &mut dyn Engine,
    at_rest: Option<&dyn AtRest>,
    samples: &Samples,
) -> Result<Loaded, EngineError> {
    let mut loaded = Loaded {
        records: Vec::new(),
        floors: HashMap::new(),
        revision: REVISION_START,
        reserved: 0,
        format: FORMAT,
        has_format: false,
        identity: None,
        running: String::new(),
        locked_rows: Vec::new(),
        locked: HashMap::new(),
    };
    let mut decoder = Decoder::new(at_rest);
    let mut entries = 0_u64;
    engine.load(&mut |entry| {
        entries += 1;
        let row = match &entry {
            Entry::Record { id, value } => Some((*id, *value)),
            Entry::Mark { .. } => None,
        };
        match decoder.decode(entry)? {
            Stored::Record(record, writer) => {
                loaded.raise(record.key().resource, record.revision());
                samples.pack(&record);
                loaded.records.push((record, writer));
            }
            Stored::Locked(key, revision, _) => {
                loaded.raise(key.resource, revision);
                loaded.locked_rows.extend(row.map(|(id, value)| LockedRow { id, value: value.into() }));
            }
            Stored::Mark(mark) => loaded.mark(mark)?,
        }
        Ok(())
    })?;
    loaded.locked = decoder.into_locked();
    // Both were written with the first of all entries.
    for (name, there) in [("format", loaded.has_format), ("identity", loaded.identity.is_some())] {
        if entries > 0 && !there {
            return Err(format::damaged(format!("its {name} is missing")));
        }
    }
    loaded.revision = loaded.floors.values().copied().fold(loaded.revision, u64::max);
    if loaded.running.is_empty() {
        // After a clean close the reservation is exact. It covers the revisions of failed writes and of deleted records.
        loaded.revision = loaded.revision.max(loaded.reserved);
    }
    Ok(loaded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::SqliteEngine;
    use crate::{Store, StoreOptions, verify};

    #[test]
    fn a_store_of_a_newer_version_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let mut engine = SqliteEngine::open(dir.path()).unwrap();
        let marks = [Mark::Format(FORMAT + 1), Mark::Identity("newer".to_owned())];
        let newer = [marks[0].op(), marks[1].op()];
        engine.append(&newer, true).unwrap();
        // What only the newer version can decode comes after the format, which is read first.
        let unknown = crate::engine::Op::Mark { name: "added-by-a-newer-version".to_owned(), value: vec![9; 40] };
        engine.append(&[unknown], true).unwrap();
        engine.close().unwrap();
        let before = marks_of(dir.path());
        let wanted = format!("the store has format {}, and this version reads formats 1 to {FORMAT}", FORMAT + 1);
        let opened = Store::open_dir(dir.path(), StoreOptions::default()).err().unwrap();
        assert!(explained(&opened).contains(&wanted), "{}", explained(&opened));
        let checked = verify(dir.path()).unwrap_err();
        assert!(explained(&checked).contains(&wanted), "{}", explained(&checked));
        assert_eq!(marks_of(dir.path()), before);
    }

    /// Returns the marks of a store. The file itself changes when it is opened: its header says how its log is kept.
    fn marks_of(dir: &std::path::Path) -> Vec<(String, Vec<u8>)> {
        let mut marks = Vec::new();
        let mut engine = SqliteEngine::open_to_read(dir).unwrap();
        let load = engine.load(&mut |entry| {
            if let Entry::Mark { name, value } = entry {
                marks.push((name.to_owned(), value.to_owned()));
            }
            Ok(())
        });
        load.unwrap();
        assert_eq!(marks.len(), 3);
        marks
    }

    fn explained(error: &dyn std::error::Error) -> String {
        error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {}", explained(cause)))
    }
}
