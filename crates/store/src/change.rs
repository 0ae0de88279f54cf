//! The checked change of a batch, and the engine operations of a whole batch.

use std::collections::HashMap;
use std::sync::Arc;

use crate::at_rest::Writer;
use crate::engine::Op;
use crate::engine::format::Mark;
use crate::event::EventKind;
use crate::key::Resource;
use crate::queue::Reply;
use crate::record::Record;

/// One change of a batch whose preconditions hold.
pub(crate) struct Change {
    pub kind: EventKind,
    pub record: Arc<Record>,
    pub previous: Option<Arc<Record>>,
    /// Whether `previous` is from the same batch, and so not stored yet.
    pub builds_on_batch: bool,
    /// The engine operation of this change, and the writer of its bytes.
    pub op: Op,
    pub writer: Writer,
    pub reply: Reply,
}

impl Change {
    /// Whether this change frees space on a full disk: it deletes a record that is already stored, or begins its deletion.
    pub fn makes_room(&self) -> bool {
        !self.builds_on_batch && (self.kind == EventKind::Deleted || self.record.meta().deleting)
    }
}

/// Takes the engine operations out of a batch's changes.
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
