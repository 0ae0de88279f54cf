//! What the store asks of whoever encrypts records on their way to the disk. Records in memory, and with them all reads, are
//! in the clear; a store without such a one has no step here at all. Which resources are encrypted, and how, is not
//! this crate's business.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::event::EventKind;
use crate::key::{Key, Resource};
use crate::record::Record;

/// Names a way of writing (a provider and its key) for the life of the process, so that records which are written in
/// another way than new ones can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Writer(pub u32);

impl Writer {
    /// Writes things as they are.
    pub const CLEAR: Self = Self(0);
}

/// A value as it is written, and who wrote it.
pub struct Sealed {
    /// With the prefix that names provider and key.
    pub bytes: Vec<u8>,
    /// Who wrote it.
    pub writer: Writer,
}

/// A value that was read back.
pub struct Opened {
    /// What was sealed.
    pub plain: Vec<u8>,
    /// Who wrote it.
    pub writer: Writer,
}

/// Why a value cannot be encrypted or decrypted; never repeats the value or a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The key service that has the key does not answer, or answers with an error. The same may succeed later.
    #[error("{0}")]
    Unavailable(String),
    /// No provider has the key, or the bytes are not what was written under this name.
    #[error("{0}")]
    Invalid(String),
}

/// Encrypts records for the disk. Calls of `seal` come from the committer, in the order of commits: they must not wait.
pub trait AtRest: Send + Sync {
    /// Who writes the records of a resource now; `None` when nobody can at the moment.
    fn writer(&self, resource: Resource) -> Option<Writer>;

    /// What to write instead of `plain`; `None` when it is to be written as it is. Asked only where [`AtRest::writer`] was not
    /// [`Writer::CLEAR`] just before: a configuration may have been taken up in between.
    ///
    /// # Errors
    /// The key is not to be had now.
    fn seal(&self, key: &Key, plain: &[u8]) -> Result<Option<Sealed>, SealError>;

    /// Whether records of a resource may be on the disk in the clear: a provider that changes nothing (`identity`) is among its
    /// providers, or it has none.
    fn reads_clear(&self, resource: Resource) -> bool;

    /// What `seal` was given. May wait for one answer of a key service, so it is called where threads may wait.
    ///
    /// # Errors
    /// See [`SealError`]: only [`SealError::Unavailable`] is worth another call.
    fn open(&self, key: &Key, sealed: &[u8]) -> Result<Opened, SealError>;
}

/// Who wrote each record that is not in the clear, by creation revision.
#[derive(Default)]
pub(crate) struct Writers {
    at_rest: Option<Arc<dyn AtRest>>,
    wrote: Mutex<HashMap<u64, Writer>>,
}

impl Writers {
    pub fn new(at_rest: Option<Arc<dyn AtRest>>) -> Self {
        Self { at_rest, wrote: Mutex::default() }
    }

    pub fn at_rest(&self) -> Option<&dyn AtRest> {
        self.at_rest.as_deref()
    }

    /// A record was stored, or deleted.
    pub fn note(&self, kind: EventKind, record: &Record, writer: Writer) {
        if self.at_rest.is_none() {
            return;
        }
        let mut wrote = self.wrote.lock();
        if kind == EventKind::Deleted || writer == Writer::CLEAR {
            wrote.remove(&record.create_revision());
        } else {
            wrote.insert(record.create_revision(), writer);
        }
    }

    /// Whether a record was written in the clear.
    pub fn is_clear(&self, record: &Record) -> bool {
        !self.wrote.lock().contains_key(&record.create_revision())
    }

    /// Nothing is known of who wrote what: everything is about to be told anew.
    pub fn forget(&self) {
        self.wrote.lock().clear();
    }

    /// Whether a record would be written in another way now than it was.
    pub fn is_stale(&self, record: &Record) -> bool {
        let Some(now) = self.at_rest().and_then(|at_rest| at_rest.writer(record.key().resource)) else { return false };
        now != self.wrote.lock().get(&record.create_revision()).copied().unwrap_or(Writer::CLEAR)
    }
}
