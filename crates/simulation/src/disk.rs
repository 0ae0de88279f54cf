//! The disk of a simulated server's store: it can be full, a write can be torn, and a power failure loses unsynced
//! data.
use std::collections::BTreeMap;
use std::sync::Arc;

use kelson_store::engine::{Engine, EngineError, Entry, Op, Sink};
use parking_lot::Mutex;

/// The prefix of the mark of an open store: `format` of the store's engine describes what follows.
const RUNNING: &str = "running";

#[derive(Clone, Default)]
struct Files {
    rows: BTreeMap<u64, Vec<u8>>,
    marks: BTreeMap<String, Vec<u8>>,
}

impl Files {
    fn apply(&mut self, batch: &[Op]) {
        for op in batch {
            match op {
                Op::Put { id, head, body } => drop(self.rows.insert(*id, [head.as_slice(), body].concat())),
                Op::Remove { id } => drop(self.rows.remove(id)),
                Op::Mark { name, value } => drop(self.marks.insert(name.clone(), value.clone())),
            }
        }
    }
}

#[derive(Default)]
struct DiskState {
    /// The content for reads.
    files: Files,
    /// The content that survives a power failure.
    synced: Files,
    full: bool,
    /// Makes the next batch fail, with whether it reached the disk.
    torn: Option<bool>,
    /// A store opened before the last power failure can no longer write.
    boot: u64,
    refused: u64,
}

/// A disk; cheap to clone, all clones share its state.
#[derive(Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<DiskState>>);

impl Disk {
    /// Returns an engine for a store, valid until a power failure.
    pub fn engine(&self) -> Box<dyn Engine> {
        Box::new(DiskEngine { disk: self.clone(), boot: self.0.lock().boot })
    }

    /// Sets whether there is room for writes.
    pub fn set_full(&self, full: bool) {
        self.0.lock().full = full;
    }

    /// Makes the next write fail. The store cannot find out whether it reached the disk.
    pub fn tear(&self, reaches: bool) {
        self.0.lock().torn = Some(reaches);
    }

    /// Returns the number of writes that were rejected for lack of room.
    pub fn refused(&self) -> u64 {
        self.0.lock().refused
    }

    /// Drops unsynced data and begins another boot.
    pub fn cut_power(&self) {
        let mut state = self.0.lock();
        state.files = state.synced.clone();
        state.boot += 1;
        let boot = format!("boot-{}", state.boot);
        // In the store's format: a zero, a checksum over name and value, the value after its length.
        let value = [&[boot.len() as u8], boot.as_bytes()].concat();
        let sum = crc32fast::hash(&[RUNNING.as_bytes(), &value].concat()).to_le_bytes();
        if let Some(running) = state.files.marks.get_mut(RUNNING) {
            *running = [&[0], &sum[..], &value].concat();
        }
        (state.full, state.torn) = (false, None);
    }
}

struct DiskEngine {
    disk: Disk,
    boot: u64,
}

impl Engine for DiskEngine {
    fn load(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        let files = self.disk.0.lock().files.clone();
        files.marks.iter().try_for_each(|(name, value)| sink(Entry::Mark { name, value }))?;
        files.rows.iter().try_for_each(|(id, value)| sink(Entry::Record { id: *id, value }))
    }

    fn append(&mut self, batch: &[Op], sync: bool) -> Result<(), EngineError> {
        let mut state = self.disk.0.lock();
        if state.boot != self.boot {
            return Err(EngineError::Other { context: "write", reason: "simulated: the power is off".into() });
        }
        if state.full {
            state.refused += 1;
            let source = std::io::ErrorKind::StorageFull.into();
            return Err(EngineError::Io { context: "write", source });
        }
        let torn = state.torn.take();
        if torn != Some(false) {
            state.files.apply(batch);
        }
        if torn.is_some() {
            state.synced = state.files.clone();
            return Err(EngineError::Sync { context: "write", reason: "simulated: torn".into() });
        }
        if sync {
            state.synced = state.files.clone();
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), EngineError> {
        self.append(&[], true)
    }

    fn blocks(&self) -> bool {
        false
    }
}
