//! Snapshots of a store, made from memory while it runs, and the check of a snapshot or of a store that no process has open.
#![allow(clippy::disallowed_methods, reason = "blocking: on the committer's own thread; opened in the lane for files")]

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::at_rest::AtRest;
use crate::engine::format::{self, Decoder, FORMAT, FORMAT_UNCHECKED, Mark, Stored, StoredHead, damaged};
use crate::engine::{Engine, EngineError, Op, SqliteEngine};
use crate::error::StoreError;
use crate::key::Resource;
use crate::limits::EVENT_TTL_S;
use crate::meta::RecordMeta;
use crate::record::Record;
use crate::table::Table;

/// The number of revisions that a restored store skips, so that no client of the original sees a revision twice. No store makes that
/// many writes between two snapshots. etcd's documentation recommends the same number.
const REVISIONS_SKIPPED: u64 = 1_000_000_000;
/// The boot identifier in a snapshot. It matches no boot, so that watchers list again.
const NOWHERE: &str = "saved";
/// The number of records that are written to a snapshot at once.
const ROWS_AT_ONCE: usize = 1000;
/// The resource whose records expire. In a mirror they have no time, because the mirrored storage deletes them.
const EVENTS: &str = "events";

/// The content of a store or of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The store's identity, which a snapshot keeps.
    pub identity: String,
    /// The highest revision of any record or deletion.
    pub revision: u64,
    /// The number of records of each resource.
    pub records: BTreeMap<String, usize>,
    /// The number of encrypted records.
    pub encrypted: usize,
}

/// Writes a snapshot; see [`crate::Store::save`].
pub(crate) fn save(
    to: &Path,
    (identity, revision): (&str, u64),
    tables: &[(Resource, Table)],
    at_rest: Option<&dyn AtRest>,
    is_mirror: bool,
) -> Result<Contents, StoreError> {
    let fault = |error| StoreError::Engine(Arc::new(error));
    if std::fs::read_dir(to).is_ok_and(|mut files| files.next().is_some()) {
        let source = std::io::ErrorKind::AlreadyExists.into();
        return Err(fault(EngineError::Io { context: "copy the store", source }));
    }
    let mut engine = SqliteEngine::open(to).map_err(fault)?;
    let mut contents = Contents { identity: identity.to_owned(), revision, ..Contents::default() };
    let mut ops: Vec<Op> = Vec::with_capacity(ROWS_AT_ONCE);
    let (mut created, expiry) = (HashSet::new(), is_mirror.then(event_expiry));
    for (resource, table) in tables.iter().filter(|(_, table)| table.len() > 0) {
        contents.records.insert(resource.as_str().to_owned(), table.len());
        for record in table.iter_from(0) {
            // Rows are numbered by the revisions that created them, which other writers of a mirrored storage may share.
            if is_mirror && !created.insert(record.create_revision()) {
                let why = format!("{} was created in one transaction with another object", record.key());
                return Err(fault(damaged(why)));
            }
            let expiring = expiry.and_then(|expiry| expiring(record, expiry));
            let record = expiring.as_ref().unwrap_or(record);
            let (op, writer) = format::put(record, at_rest).map_err(StoreError::Sealed)?;
            contents.encrypted += usize::from(writer != crate::at_rest::Writer::CLEAR);
            ops.push(op);
            if ops.len() == ROWS_AT_ONCE {
                engine.append(&ops, false).map_err(fault)?;
                ops.clear();
            }
        }
    }
    let marks = [
        Mark::Format(FORMAT),
        Mark::Identity(identity.to_owned()),
        Mark::Reserved(revision.saturating_add(REVISIONS_SKIPPED)),
        Mark::Running(NOWHERE.to_owned()),
    ];
    ops.extend(marks.iter().map(Mark::op));
    engine.append(&ops, true).map_err(fault)?;
    engine.close().map_err(fault)?;
    Ok(contents)
}

/// Returns when the events of a mirror expire in a snapshot: their time begins again.
fn event_expiry() -> (Resource, u64) {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    (Resource::parse(EVENTS), now_s + EVENT_TTL_S)
}

/// Returns the record with this expiry, if it is one of `events` without any.
fn expiring(record: &Record, (events, expires_at_s): (Resource, u64)) -> Option<Record> {
    let is_endless = record.key().resource == events && record.meta().expires_at_s == 0;
    is_endless.then(|| record.with_meta(RecordMeta { expires_at_s, ..record.meta().clone() }))
}

/// Reads a snapshot, or a store that no process has open, without changing it. Checks the pages, the checksums, and that every record can
/// be decoded. Encrypted records are checked as far as possible without the key.
///
/// # Errors
/// Returns [`StoreError::Open`] with the first damage that was found.
pub fn verify(dir: &Path) -> Result<Contents, StoreError> {
    let fault = |error: EngineError| StoreError::Open(Arc::new(error.of(&dir.join(SqliteEngine::FILE))));
    let mut engine = SqliteEngine::open_to_read(dir).map_err(fault)?;
    let mut contents = Contents::default();
    let mut known = None;
    let mut decoder = Decoder::new(None);
    let read = engine.load(&mut |entry| {
        let (resource, revision) = match decoder.look(entry)? {
            StoredHead::Encrypted(key, revision) => {
                contents.encrypted += 1;
                (Some(key.resource), revision)
            }
            StoredHead::Whole(Stored::Locked(key, revision, _)) => (Some(key.resource), revision),
            StoredHead::Whole(Stored::Record(record, _)) => (Some(record.key().resource), record.revision()),
            StoredHead::Whole(Stored::Mark(Mark::Deleted(_, revision))) => (None, revision),
            StoredHead::Whole(Stored::Mark(Mark::Identity(identity))) => {
                contents.identity = identity;
                (None, 0)
            }
            // The format comes first: what follows in a newer one cannot be decoded.
            StoredHead::Whole(Stored::Mark(Mark::Format(found))) if found > FORMAT => {
                return Err(EngineError::Format { found, oldest: FORMAT_UNCHECKED, expected: FORMAT });
            }
            StoredHead::Whole(Stored::Mark(Mark::Format(format))) => {
                known = Some(format);
                (None, 0)
            }
            StoredHead::Whole(Stored::Mark(Mark::Reserved(_) | Mark::Running(_))) => (None, 0),
        };
        contents.revision = contents.revision.max(revision);
        if let Some(resource) = resource {
            *contents.records.entry(resource.as_str().to_owned()).or_default() += 1;
        }
        Ok(())
    });
    read.map_err(fault)?;
    match known {
        Some(_) => Ok(contents),
        None => Err(fault(EngineError::Corrupt { path: dir.to_path_buf(), reason: "it is not a store".to_owned() })),
    }
}
