//! The interface between the store and the encryption of its records on the disk. Records in memory are unencrypted, and so are all
//! reads. A store without encryption skips this step. The implementation of [`AtRest`] decides which resources are encrypted, and how.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::event::EventKind;
use crate::key::{Key, Resource};
use crate::record::Record;

/// Identifies a way of writing records (a provider and its key) while the process runs, so that the store can recognize records that
/// were written differently than new ones would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Writer(pub u32);

impl Writer {
    /// Writes records unencrypted.
    pub const CLEAR: Self = Self(0);
}

/// An encrypted value, and the way in which it was encrypted.
pub struct Sealed {
    /// The encrypted bytes, after a prefix that names the provider and the key.
    pub bytes: Vec<u8>,
    /// The provider and key that encrypted the value.
    pub writer: Writer,
}

/// A decrypted value, and the way in which it was encrypted.
pub struct Opened {
    /// The unencrypted bytes.
    pub plain: Vec<u8>,
    /// The provider and key that had encrypted the value.
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

/// Encrypts records for the disk. The committer calls `seal` in the order of commits, so `seal` must not wait.
pub trait AtRest: Send + Sync {
    /// The provider and key that would write a record of this resource now, or `None` if no provider can at the moment.
    fn writer(&self, resource: Resource) -> Option<Writer>;

    /// Encrypts `plain`, or returns `None` if it must be written unencrypted. The store calls this only after
    /// [`AtRest::writer`] returned something else than [`Writer::CLEAR`]; the configuration may have been reloaded in
    /// between.
    ///
    /// # Errors
    /// Returns an error if the key is not available now.
    fn seal(&self, key: &Key, plain: &[u8]) -> Result<Option<Sealed>, SealError>;

    /// Whether records of the resource may be unencrypted on the disk: its providers include one that changes nothing (`identity`), or
    /// it has no providers.
    fn reads_clear(&self, resource: Resource) -> bool;

    /// Decrypts the result of `seal`. May wait for one answer of a key service, so it is called where threads may wait.
    ///
    /// # Errors
    /// See [`SealError`]: only [`SealError::Unavailable`] is worth another call.
    fn open(&self, key: &Key, sealed: &[u8]) -> Result<Opened, SealError>;
}

/// The writer of each record that is encrypted on the disk, by the record's creation revision.
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

    /// Notes that a record was stored or deleted.
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

    /// Whether the record is unencrypted on the disk.
    pub fn is_clear(&self, record: &Record) -> bool {
        !self.wrote.lock().contains_key(&record.create_revision())
    }

    /// Forgets all writers, before all records are noted again.
    pub fn forget(&self) {
        self.wrote.lock().clear();
    }

    /// Whether the record would be written differently now than when it was stored.
    pub fn is_stale(&self, record: &Record) -> bool {
        let Some(now) = self.at_rest().and_then(|at_rest| at_rest.writer(record.key().resource)) else { return false };
        now != self.wrote.lock().get(&record.create_revision()).copied().unwrap_or(Writer::CLEAR)
    }
}
