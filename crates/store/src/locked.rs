//! Resources that cannot be decrypted now, because their key service is not available. They are kept apart: their records are not shown,
//! they are not written, and everything else is served. Once the service answers, all of them are shown at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::at_rest::SealError;
use crate::key::Resource;

/// One row of an engine that holds a record which cannot be decrypted now.
pub(crate) struct LockedRow {
    /// The number of the row: the record's creation revision.
    pub id: u64,
    /// The row as it is on the disk.
    pub value: Box<[u8]>,
}

/// The records that a store cannot decrypt.
#[derive(Default)]
struct LockedRows {
    rows: Arc<[LockedRow]>,
    /// The format of the rows.
    format: u64,
    reasons: HashMap<Resource, SealError>,
}

/// The locked resources of one store.
#[derive(Default)]
pub(crate) struct LockedResources {
    any: AtomicBool,
    held: Mutex<LockedRows>,
}

impl LockedResources {
    /// Locks resources whose rows are kept until they can be decrypted.
    pub fn with_rows(rows: Vec<LockedRow>, format: u64, reasons: HashMap<Resource, SealError>) -> Self {
        let any = AtomicBool::new(!reasons.is_empty());
        Self { any, held: Mutex::new(LockedRows { rows: rows.into(), format, reasons }) }
    }

    /// Why a resource is locked; `None` when it is not.
    pub fn reason(&self, resource: Resource) -> Option<SealError> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.held.lock().reasons.get(&resource).cloned()
    }

    /// All locked resources, in order.
    pub fn all(&self) -> Vec<(Resource, SealError)> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut all: Vec<_> = self.held.lock().reasons.iter().map(|(r, why)| (*r, why.clone())).collect();
        all.sort_unstable_by_key(|(resource, _)| *resource);
        all
    }

    /// Replaces the reasons, and with them which resources are locked.
    pub fn set(&self, reasons: HashMap<Resource, SealError>) {
        let mut held = self.held.lock();
        self.any.store(!reasons.is_empty(), Ordering::Release);
        held.reasons = reasons;
        held.rows = Arc::default();
    }

    /// The rows that wait, and their format.
    pub fn rows(&self) -> (Arc<[LockedRow]>, u64) {
        let held = self.held.lock();
        (Arc::clone(&held.rows), held.format)
    }
}
