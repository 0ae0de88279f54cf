//! The types of a write: the request to the committer and its result.

use std::sync::Arc;

use crate::body::Body;
use crate::error::StoreError;
use crate::key::Key;
use crate::meta::{RecordMeta, Uid};
use crate::record::Record;

/// The condition on the current record under which a write happens. The committer checks it in commit order, so of two writers with
/// the same expectation one succeeds and the other gets an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// No condition, except that a delete needs a record.
    Any,
    /// The record must not exist.
    Absent,
    /// The record must exist.
    Exists,
    /// The record must exist at this revision.
    AtRevision(u64),
}

/// The point at which a write is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The write is acknowledged after the sync. It survives a power cut.
    #[default]
    Synced,
    /// The write is acknowledged as soon as the kernel has the bytes. It survives the end of the process, also by `kill
    /// -9`, but a power cut or a kernel crash may lose the last [`crate::limits::RELAXED_SYNC_DELAY_S`] seconds of such
    /// writes. Writes are lost from the end only: no later write survives a lost earlier one. Leases and Events use
    /// this, so that an idle cluster does not wear out its flash storage.
    Relaxed,
}

/// The change that a write makes.
#[derive(Clone, Debug)]
pub enum Action {
    /// Stores a body.
    Put {
        /// The object's JSON, without a revision.
        body: Body,
        /// The values that are stored beside the body.
        meta: RecordMeta,
    },
    /// Removes the record.
    Delete {
        /// The object's last state for watchers. If `None`, watchers get the stored bytes with the deletion's revision.
        body: Option<Body>,
    },
}

/// A change of one key, with the conditions under which it happens.
#[derive(Debug)]
pub struct Write {
    /// The key of the record.
    pub key: Key,
    /// The condition on the current record.
    pub precondition: Precondition,
    /// The UID that the current record must have, if the writer gave one.
    pub uid: Option<Uid>,
    /// The change: put or delete.
    pub action: Action,
    /// When the write is acknowledged.
    pub durability: Durability,
    /// A mark for the record, see [`Record::mark`].
    pub mark: u32,
}

impl Write {
    /// A write that creates a record. It fails if the record exists.
    #[must_use]
    pub fn create(key: Key, body: Body, meta: RecordMeta) -> Self {
        Self::put(key, Precondition::Absent, body, meta)
    }

    /// A write that replaces the record if its revision is `revision`.
    #[must_use]
    pub fn update(key: Key, revision: u64, body: Body, meta: RecordMeta) -> Self {
        Self::put(key, Precondition::AtRevision(revision), body, meta)
    }

    /// A write that stores a body under the given precondition.
    #[must_use]
    pub fn put(key: Key, precondition: Precondition, body: Body, meta: RecordMeta) -> Self {
        let action = Action::Put { body, meta };
        Self { key, precondition, uid: None, action, durability: Durability::Synced, mark: 0 }
    }

    /// A write that removes a record.
    #[must_use]
    pub fn delete(key: Key, precondition: Precondition) -> Self {
        let action = Action::Delete { body: None };
        Self { key, precondition, uid: None, action, durability: Durability::Synced, mark: 0 }
    }

    /// Adds the UID that the current record must have.
    #[must_use]
    pub fn with_uid(mut self, uid: Uid) -> Self {
        self.uid = Some(uid);
        self
    }

    /// Makes the write relaxed: it is acknowledged before the sync. See [`Durability::Relaxed`].
    #[must_use]
    pub fn relaxed(mut self) -> Self {
        self.durability = Durability::Relaxed;
        self
    }

    /// Checks the write's conditions against the current record.
    pub(crate) fn allowed(&self, current: Option<&Arc<Record>>) -> Result<(), StoreError> {
        let Some(current) = current else {
            let needs_record = matches!(self.action, Action::Delete { .. }) || self.uid.is_some();
            return match self.precondition {
                Precondition::Absent | Precondition::Any if !needs_record => Ok(()),
                _ => Err(StoreError::NotFound),
            };
        };
        if self.precondition == Precondition::Absent {
            return Err(StoreError::AlreadyExists { current: Arc::clone(current) });
        }
        if let Some(expected) = &self.uid
            && *expected != current.meta().uid
        {
            return Err(StoreError::UidMismatch { current: Arc::clone(current), expected: expected.clone() });
        }
        match self.precondition {
            Precondition::AtRevision(expected) if expected != current.revision() => {
                Err(StoreError::Conflict { current: Arc::clone(current), expected })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn cost(&self) -> usize {
        match &self.action {
            Action::Put { body, .. } | Action::Delete { body: Some(body) } => body.len(),
            Action::Delete { body: None } => 0,
        }
    }
}

/// The result of a write that happened.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The revision of the write.
    pub revision: u64,
    /// The new record. For a delete, the record's last state with the deletion's revision.
    pub record: Arc<Record>,
    /// The record before the write, if there was one.
    pub previous: Option<Arc<Record>>,
}
