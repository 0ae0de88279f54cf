//! What a writer asks of the committer, and what it gets back.

use std::sync::Arc;

use crate::body::Body;
use crate::error::StoreError;
use crate::key::Key;
use crate::meta::{RecordMeta, Uid};
use crate::record::Record;

/// What must hold of the key for the write to happen. Checked in commit order, so of two writers with the same
/// expectation one wins and the other is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing (a delete still needs something to delete).
    Any,
    /// There is no record.
    Absent,
    /// There is a record.
    Exists,
    /// There is a record and its revision is this.
    AtRevision(u64),
}

/// When a write is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// After the sync: an acknowledged write survives a power cut.
    #[default]
    Synced,
    /// As soon as the kernel has the bytes: an acknowledged write survives the end of the process, by `kill -9` too,
    /// but a power cut or a crash of the kernel may take the last [`crate::limits::RELAXED_SYNC_DELAY_S`] seconds of
    /// such writes away. They are lost from the end only: no later write survives an earlier one. For Leases and
    /// Events, so that an idle cluster does not wear out its flash.
    Relaxed,
}

/// What to do with the key.
#[derive(Clone, Debug)]
pub enum Action {
    /// Store this body.
    Put {
        /// The object's JSON, without a revision.
        body: Body,
        /// What to keep beside it.
        meta: RecordMeta,
    },
    /// Remove the record.
    Delete {
        /// The object's last state as watchers shall see it; without it, the stored bytes with the deletion's revision.
        body: Option<Body>,
    },
}

/// One change of one key, with what must hold for it to happen.
#[derive(Debug)]
pub struct Write {
    /// What to write.
    pub key: Key,
    /// What must hold before.
    pub precondition: Precondition,
    /// The UID that an existing record must have, if any is asked for.
    pub uid: Option<Uid>,
    /// Put or delete.
    pub action: Action,
    /// When to answer.
    pub durability: Durability,
    /// What the record is marked with, see [`Record::mark`].
    pub mark: u32,
}

impl Write {
    /// Creates a record that must not exist yet.
    #[must_use]
    pub fn create(key: Key, body: Body, meta: RecordMeta) -> Self {
        Self::put(key, Precondition::Absent, body, meta)
    }

    /// Replaces the record that is at `revision`.
    #[must_use]
    pub fn update(key: Key, revision: u64, body: Body, meta: RecordMeta) -> Self {
        Self::put(key, Precondition::AtRevision(revision), body, meta)
    }

    /// Stores a body under any precondition.
    #[must_use]
    pub fn put(key: Key, precondition: Precondition, body: Body, meta: RecordMeta) -> Self {
        let action = Action::Put { body, meta };
        Self { key, precondition, uid: None, action, durability: Durability::Synced, mark: 0 }
    }

    /// Removes a record.
    #[must_use]
    pub fn delete(key: Key, precondition: Precondition) -> Self {
        let action = Action::Delete { body: None };
        Self { key, precondition, uid: None, action, durability: Durability::Synced, mark: 0 }
    }

    /// The same write, with an expected UID.
    #[must_use]
    pub fn with_uid(mut self, uid: Uid) -> Self {
        self.uid = Some(uid);
        self
    }

    /// The same write, answered before the sync. See [`Durability::Relaxed`].
    #[must_use]
    pub fn relaxed(mut self) -> Self {
        self.durability = Durability::Relaxed;
        self
    }

    /// Whether what must hold of the key holds of the record it has now.
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

/// A write that happened.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The revision it got.
    pub revision: u64,
    /// The new record; for a delete, the last state with the deletion's revision.
    pub record: Arc<Record>,
    /// What was there before.
    pub previous: Option<Arc<Record>>,
}
