//! The versions of one key.

use bytes::Bytes;

use crate::proto::KeyValue;

/// A revision of the store, and the index among the changes of that revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// The number of transactions with changes; the empty store has 1.
    pub main: i64,
    /// The index among the changes of the revision, from 0.
    pub sub: u32,
}

/// One version of a key, or its deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The revision that wrote it.
    pub revision: Revision,
    /// The revision that created the key.
    pub created: i64,
    /// The number of versions since the key was created, including this one; 0 means that the key was deleted.
    pub number: i64,
    /// The ID of its lease, or 0.
    pub lease: i64,
    /// The value; empty for a deletion.
    pub value: Bytes,
}

impl Version {
    /// Creates a deletion.
    pub fn deletion(revision: Revision) -> Self {
        Self { revision, created: 0, number: 0, lease: 0, value: Bytes::new() }
    }

    /// Reports whether this is a deletion.
    pub fn is_deletion(&self) -> bool {
        self.number == 0
    }

    /// Returns the form of the protocol; for a deletion, key and revision only.
    pub fn key_value(&self, key: &Bytes) -> KeyValue {
        KeyValue {
            key: key.clone(),
            create_revision: self.created,
            mod_revision: self.revision.main,
            version: self.number,
            value: self.value.clone(),
            lease: self.lease,
        }
    }
}

/// All known versions of one key, the oldest first. Most keys have one.
#[derive(Debug, Default)]
pub(super) struct History(Vec<Version>);

impl History {
    pub fn push(&mut self, version: Version) {
        debug_assert!(self.0.last().is_none_or(|last| last.revision < version.revision));
        if self.0.len() == self.0.capacity() {
            // A vector that grows by itself begins with a capacity of four.
            self.0.reserve_exact((self.0.len() / 2).max(1));
        }
        self.0.push(version);
    }

    pub fn pop(&mut self) -> Option<Version> {
        self.0.pop()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Version> {
        self.0.iter()
    }

    /// Returns the last version, unless the key is deleted.
    pub fn newest(&self) -> Option<&Version> {
        self.0.last().filter(|v| !v.is_deletion())
    }

    /// Returns the version as of a revision, unless the key did not exist.
    pub fn at(&self, main: i64) -> Option<&Version> {
        // Most readers want the newest.
        match self.0.last() {
            Some(last) if last.revision.main <= main => Some(last),
            _ => self.0[..self.0.partition_point(|v| v.revision.main <= main)].last(),
        }
        .filter(|v| !v.is_deletion())
    }

    /// Returns the version that was written at exactly this revision.
    pub fn written_at(&self, revision: Revision) -> Option<&Version> {
        self.0.binary_search_by(|v| v.revision.cmp(&revision)).ok().map(|i| &self.0[i])
    }

    /// Removes versions that a reader at `main` or later cannot see, and passes them to `forgotten`. A deletion at
    /// exactly that revision stays, since watches from there on report it.
    pub fn compact(&mut self, main: i64, forgotten: &mut dyn FnMut(&Version)) {
        let seen = self.0.partition_point(|v| v.revision.main <= main);
        let Some(newest) = seen.checked_sub(1) else { return };
        let goes = self.0[newest].is_deletion() && self.0[newest].revision.main < main;
        let end = if goes { seen } else { newest };
        if end > 0 {
            self.0.drain(..end).for_each(|v| forgotten(&v));
            self.0.shrink_to_fit();
        }
    }
}
