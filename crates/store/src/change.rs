//! A checked change of a batch, and what the engine is asked for by all of them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::at_rest::Writer;
use crate::engine::Op;
use crate::engine::format::Mark;
use crate::event::EventKind;
use crate::key::Resource;
use crate::queue::Reply;
use crate::record::Record;

/// One checked change of a batch.
pub(crate) struct Change {
    pub kind: EventKind,
    pub record: Arc<Record>,
    pub previous: Option<Arc<Record>>,
    /// Whether `previous` is of the same batch, and so not stored yet.
    pub builds_on_batch: bool,
    /// What the engine is asked for, and who wrote it.
    pub op: Op,
    pub writer: Writer,
    pub reply: Reply,
}

impl Change {
    /// Whether it can be stored by itself on a disk that is full: a deletion, or the beginning of one, of what is stored already.
    pub fn makes_room(&self) -> bool {
        !self.builds_on_batch && (self.kind == EventKind::Deleted || self.record.meta().deleting)
    }
}

/// What the engine is asked for by a batch, taken out of its changes.
pub(crate) fn ops(changes: &mut [Change]) -> Vec<Op> {
    let mut ops = Vec::with_capacity(changes.len() + 2);
    let mut deleted: HashMap<Resource, u64> = HashMap::new();
    for change in changes {
        if change.kind == EventKind::Deleted {
            deleted.insert(change.record.key().resource, change.record.revision());
        }
        ops.push(std::mem::replace(&mut change.op, Op::Remove { id: 0 }));
    }
    ops.extend(deleted.into_iter().map(|(resource, revision)| Mark::Deleted(resource, revision).op()));
    ops
}
