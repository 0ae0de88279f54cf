//! What reading, following and writing have in common: the connection, the mirror, and what keys and values mean.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kelson_etcd::proto::KeyValue;
use kelson_store::{Key, Mirror, MirrorChange, MirrorValue, Resource, SealError, Writer};
use kelson_tasks::Lane;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::connection::Connection;
use crate::fence::Fence;
use crate::key::Keys;
use crate::lease::Leases;
use crate::marker::Marker;
use crate::pending::Pending;
use crate::value::{self, MediaType};

/// The prefix of every encrypted value.
pub(crate) const SEALED: &[u8] = b"k8s:enc:";

/// The thread that decodes values when there are many of them, or when decoding waits for a key service.
pub(crate) static DECODE: Lane = Lane::new("etcd-decode", 1);
/// The pause between two attempts to decrypt locked values.
const UNLOCK_PAUSE: Duration = Duration::from_secs(2);

/// One store on etcd.
pub(crate) struct Core {
    pub connection: Arc<Connection>,
    pub mirror: Mirror,
    pub keys: Keys,
    pub media: MediaType,
    pub pending: Pending,
    pub leases: Leases,
    pub fence: Fence,
    /// Etcd is asked for progress when this is rung. Where its answer cannot be believed, all keys are watched instead, so that
    /// every revision is brought by some event.
    pub nudge: Option<Notify>,
    /// Where the answer to that does not come, a revision is written.
    pub marker: Marker,
    pub faults: Faults,
    pub locked: Locked,
}

/// The reason why a value cannot be decoded, with the key it belongs to.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {why}")]
pub(crate) struct Unreadable {
    pub key: Key,
    pub why: String,
    pub fault: Fault,
}

/// The kinds of faults that a stored value may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The value is not an object of the API.
    Damaged,
    /// It is encrypted, and no provider can decrypt it.
    Sealed,
    /// It is encrypted, and the key service is not available.
    Unavailable,
}

/// One value of each resource that cannot be decrypted now: once it can be, everything is read again.
#[derive(Default)]
pub(crate) struct Locked {
    values: Mutex<HashMap<Resource, (Key, Bytes)>>,
    added: Notify,
}

impl Locked {
    /// Notes the value that locked its resource.
    pub fn note(&self, key: Key, value: Bytes) {
        self.values.lock().entry(key.resource).or_insert((key, value));
        self.added.notify_one();
    }

    /// Takes the values of a new reading of everything.
    pub fn replace(&self, values: HashMap<Resource, (Key, Bytes)>) {
        *self.values.lock() = values;
        self.added.notify_one();
    }

    fn all(&self) -> Vec<(Key, Bytes)> {
        self.values.lock().values().cloned().collect()
    }
}

impl Core {
    /// Decodes a stored pair, or returns `None` when the key belongs to no object of the API. The call may wait for a
    /// key service.
    ///
    /// # Errors
    /// See [`Unreadable`].
    pub fn read(&self, kv: &KeyValue) -> Result<Option<MirrorChange>, Unreadable> {
        let Some(key) = self.keys.parse(&kv.key) else { return Ok(None) };
        let value = match self.pending.take(&kv.key, &kv.value) {
            Some(value) => value,
            None => self.decode(&key, &kv.value)?,
        };
        Ok(Some(MirrorChange {
            key,
            revision: u64::try_from(kv.mod_revision).unwrap_or(0),
            create_revision: u64::try_from(kv.create_revision).unwrap_or(0),
            value: Some(value),
        }))
    }

    /// Resolves when a value that could not be decrypted can be.
    pub async fn unlocked(self: &Arc<Self>) {
        loop {
            while !self.mirror.has_locked() {
                self.locked.added.notified().await;
            }
            tokio::time::sleep(UNLOCK_PAUSE).await;
            let core = Arc::clone(self);
            let opens = move || {
                let at_rest = core.mirror.at_rest();
                at_rest.is_some_and(|at| core.locked.all().iter().any(|(key, value)| at.open(key, value).is_ok()))
            };
            if DECODE.run(opens).await.unwrap_or(false) {
                return;
            }
        }
    }

    fn decode(&self, key: &Key, stored: &Bytes) -> Result<MirrorValue, Unreadable> {
        let fault = |why: String, fault: Fault| Unreadable { key: key.clone(), why, fault };
        let opened;
        let (plain, writer) = if stored.starts_with(SEALED) {
            let at_rest = self.mirror.at_rest().ok_or_else(|| {
                fault("it is encrypted, and no --encryption-provider-config is given".to_owned(), Fault::Sealed)
            })?;
            opened = at_rest.open(key, stored).map_err(|error| match error {
                SealError::Unavailable(why) => fault(why, Fault::Unavailable),
                SealError::Invalid(why) => fault(why, Fault::Sealed),
            })?;
            (&opened.plain[..], opened.writer)
        } else if self.mirror.at_rest().is_some_and(|at_rest| !at_rest.reads_clear(key.resource)) {
            // What an API server of upstream says when it meets such a value.
            return Err(fault("no matching prefix found".to_owned(), Fault::Sealed));
        } else {
            (&stored[..], Writer::CLEAR)
        };
        let decoded = value::decode(key, plain).map_err(|error| fault(error.to_string(), Fault::Damaged))?;
        Ok(MirrorValue { body: decoded.body, meta: decoded.meta, writer })
    }
}

/// The faults that prevent etcd from being read or written, one per finder.
#[derive(Default)]
pub(crate) struct Faults(Mutex<[Option<String>; 2]>);

/// The part of the store that finds a fault.
#[derive(Clone, Copy)]
pub(crate) enum Finder {
    /// The watch is not connected.
    Watch,
    /// A read is not answered in time.
    Probe,
}

impl Faults {
    /// Records what one finder has found, `None` for no fault, and returns the first fault of all finders.
    pub fn found(&self, by: Finder, fault: Option<String>) -> Option<String> {
        let mut faults = self.0.lock();
        faults[by as usize] = fault;
        faults.iter().flatten().next().cloned()
    }
}
