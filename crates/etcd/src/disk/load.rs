//! Loads a state from files.

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;
use std::time::Duration;

use super::frame::{FrameRead, Reader};
use super::record::{self, Entry, FORMAT};
use super::{DiskError, Identity, Log, Record, files, position};
use crate::mvcc::State;

/// The content of a directory.
#[derive(Debug)]
pub struct Loaded {
    /// Keys and leases. Leases have their full time again.
    pub state: State,
    /// The identity of the store.
    pub identity: Identity,
    /// Active alarms, by their numbers in the protocol.
    pub alarms: Vec<i32>,
    /// The log for commits.
    pub log: Log,
    /// The size of the snapshot that was read, in bytes.
    pub snapshot_bytes: u64,
}

/// Reads the store below a data directory, or creates one with `identity`. Without `syncs`, commits survive the process
/// but not a power failure.
///
/// # Errors
/// An I/O error, damaged files, or a directory of another program.
pub fn load(data_dir: &Path, identity: Identity, syncs: bool) -> Result<Loaded, DiskError> {
    let dir = files::create(data_dir)?;
    let (snapshots, logs) = files::list(&dir)?;
    let demands = position::read(&dir).map_err(files::fault("read", &dir))?;
    let mut loading =
        Loading { state: State::default(), identity: None, alarms: Vec::new(), revision: 0, records: 0, ended: false };
    let from = snapshots.last().copied().unwrap_or(1);
    let mut snapshot_bytes = 0;
    if let Some(number) = snapshots.last() {
        snapshot_bytes = loading.snapshot(&files::snapshot(&dir, *number))?;
    }
    let logs: Vec<u64> = logs.into_iter().filter(|n| *n >= from).collect();
    if let Some((_, number)) = (from..).zip(&logs).find(|(wanted, number)| wanted != *number) {
        let path = files::log(&dir, *number);
        return Err(DiskError::Damaged { path, at: 0, reason: "the previous log is missing" });
    }
    let mut end = (0, 0);
    for number in &logs {
        let is_last = Some(number) == logs.last();
        let last = if is_last { Last::Open } else { Last::Followed { closed: *number >= demands.closed_since } };
        let bytes = loading.log(&files::log(&dir, *number), last, demands.bytes_of(*number))?;
        end = (bytes, loading.records);
    }
    if let Some(at) = demands.reached
        && logs.last().is_none_or(|last| *last < at.log)
    {
        let note = demands.path.display();
        tracing::error!(%note, "without this file the store starts and loses the missing commits");
        let reason = "it is missing, and commits in it were acknowledged";
        return Err(DiskError::Damaged { path: files::log(&dir, at.log), at: 0, reason });
    }
    let mut log = Log::open(&dir, logs.last().copied().unwrap_or(from), end, syncs)?;
    let identity = match loading.identity {
        Some(identity) => identity,
        None => {
            log.append(&[Record::identity(identity)])?;
            identity
        }
    };
    if syncs {
        // The parent of the data directory too, since the data directory may be new.
        [dir.as_path(), data_dir].into_iter().try_for_each(files::sync_names)?;
    }
    files::remove_before(&dir, from)?;
    loading.state.loaded(loading.revision);
    Ok(Loaded { state: loading.state, identity, alarms: loading.alarms, log, snapshot_bytes })
}

struct Loading {
    state: State,
    identity: Option<Identity>,
    alarms: Vec<i32>,
    revision: i64,
    /// The number of records in the current file.
    records: u64,
    /// Whether the last record ends a snapshot.
    ended: bool,
}

/// The position of a log in the sequence of logs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    /// The last one, to which commits are appended.
    Open,
    /// Other logs follow; `closed` means that its last record must say so.
    Followed { closed: bool },
}

/// The end of a file.
enum End {
    /// The file ends after this number of bytes, with a complete frame.
    Whole(u64),
    /// An incomplete frame follows after this number of bytes.
    Torn(u64),
}

impl Loading {
    fn snapshot(&mut self, path: &Path) -> Result<u64, DiskError> {
        let ended = self.frames(path)?;
        match ended {
            End::Whole(bytes) if self.ended => Ok(bytes),
            End::Whole(at) | End::Torn(at) => {
                Err(DiskError::Damaged { path: path.to_path_buf(), at, reason: "the file is truncated" })
            }
        }
    }

    /// Reads a log, of which `acknowledged` bytes were acknowledged.
    fn log(&mut self, path: &Path, last: Last, acknowledged: u64) -> Result<u64, DiskError> {
        self.ended = false;
        match self.frames(path)? {
            End::Whole(at) | End::Torn(at) if at < acknowledged => {
                let reason = "acknowledged commits from there on are missing or damaged (if the file `position` is removed, \
                              the store starts and loses them)";
                Err(DiskError::Damaged { path: path.to_path_buf(), at, reason })
            }
            End::Whole(at) if last == (Last::Followed { closed: true }) && !self.ended => {
                let reason = "a log that is followed by others ends early";
                Err(DiskError::Damaged { path: path.to_path_buf(), at, reason })
            }
            End::Whole(bytes) => Ok(bytes),
            End::Torn(bytes) if last == Last::Open => {
                tracing::warn!(path = %path.display(), at = bytes, "removing the incomplete last commit, which was never acknowledged");
                let cut = File::options().write(true).open(path).and_then(|file| {
                    file.set_len(bytes)?;
                    file.sync_all()
                });
                cut.map_err(files::fault("cut", path))?;
                Ok(bytes)
            }
            End::Torn(at) => Err(DiskError::Damaged {
                path: path.to_path_buf(),
                at,
                reason: "a log that is followed by others ends early",
            }),
        }
    }

    fn frames(&mut self, path: &Path) -> Result<End, DiskError> {
        let file = File::open(path).map_err(files::fault("open", path))?;
        let length = file.metadata().map_err(files::fault("read", path))?.len();
        let mut reader = Reader::new(BufReader::with_capacity(256 << 10, file).take(length), length);
        self.records = 0;
        loop {
            let at = reader.at;
            let damaged = |reason| DiskError::Damaged { path: path.to_path_buf(), at, reason };
            match reader.next().map_err(files::fault("read", path))? {
                FrameRead::Frame => {}
                FrameRead::End => return Ok(End::Whole(at)),
                FrameRead::Torn => return Ok(End::Torn(at)),
                FrameRead::Damaged(reason) => return Err(damaged(reason)),
            }
            for entry in record::decode(&reader.content) {
                self.take(entry.ok_or_else(|| damaged("a record of unknown type"))?).map_err(damaged)?;
            }
        }
    }

    fn take(&mut self, entry: Entry) -> Result<(), &'static str> {
        self.ended = matches!(entry, Entry::End(_));
        match entry {
            Entry::Identity(identity) if identity.format != FORMAT => {
                return Err("the file was written by a newer version");
            }
            Entry::Identity(identity) => self.identity = Some(identity),
            Entry::Version(stored) => {
                let (key, version) = stored.version();
                self.revision = self.revision.max(version.revision.main);
                self.state.load(&key, version);
            }
            Entry::Compacted(main) => self.state.compact(main),
            Entry::Grant(lease) => self.state.grant(lease.id, lease.seconds, Duration::ZERO),
            Entry::LeaseEnded(id) => self.state.end_lease(id),
            Entry::Alarms(alarms) => self.alarms = alarms.on,
            Entry::Revision(main) => self.revision = self.revision.max(main),
            Entry::End(records) if records != self.records => return Err("records are missing"),
            Entry::End(_) => {}
        }
        self.records += 1;
        Ok(())
    }
}
