//! The disk beneath the store of a simulated server: it can be full, a write can be torn, and the power can be cut, which takes away
//! what was not synced.
use std::collections::BTreeMap;
use std::sync::Arc;

use kelson_store::engine::{Engine, EngineError, Entry, Op, Sink};
use parking_lot::Mutex;

/// How the mark of a store that is open begins: `format` of the store's engine says what stands behind it.
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
    /// What the system answers reads with.
    files: Files,
    /// What survives a power cut.
    synced: Files,
    full: bool,
    /// The next batch is told as failed, and whether it reached the disk.
    torn: Option<bool>,
    /// Who opened the disk before the last power cut writes nothing any more.
    boot: u64,
    refused: u64,
}

/// A disk; cheap to clone, all clones are one.
#[derive(Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<DiskState>>);

impl Disk {
    /// Opened by a store, until the power is cut.
    pub fn engine(&self) -> Box<dyn Engine> {
        Box::new(DiskEngine { disk: self.clone(), boot: self.0.lock().boot })
    }

    /// Whether there is room for writes.
    pub fn set_full(&self, full: bool) {
        self.0.lock().full = full;
    }

    /// The next write is not confirmed. The store cannot know whether it is there, and is never told.
    pub fn tear(&self, reaches: bool) {
        self.0.lock().torn = Some(reaches);
    }

    /// Writes that were refused since there was no room.
    pub fn refused(&self) -> u64 {
        self.0.lock().refused
    }

    /// Takes away what was not synced. The machine starts anew.
    pub fn cut_power(&self) {
        let mut state = self.0.lock();
        state.files = state.synced.clone();
        state.boot += 1;
        let boot = format!("boot-{}", state.boot);
        // As the store writes such a mark: a zero, a checksum over name and value, the value behind its length.
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
