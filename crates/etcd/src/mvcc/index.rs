//! All keys in their order.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::history::{History, Revision, Version};
use super::range::KeyRange;

/// The size of a version in addition to key and value, for the quota.
pub(super) const VERSION_BYTES: u64 = 128;

#[derive(Debug, Default)]
pub(super) struct Index {
    keys: BTreeMap<Bytes, History>,
    /// The size of all keys, values and versions in bytes.
    bytes: u64,
}

impl Index {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Adds a version. Returns the key as the index holds it, so that the caller can share its bytes.
    pub fn push(&mut self, key: &Bytes, version: Version) -> Bytes {
        self.bytes = self.bytes.saturating_add(cost(key, &version));
        if let Some((held, _)) = self.keys.get_key_value(key) {
            let held = held.clone();
            if let Some(history) = self.keys.get_mut(key) {
                history.push(version);
            }
            return held;
        }
        // A decoded key shares the buffer of its whole request, which must not live as long as the key.
        let held = Bytes::copy_from_slice(key);
        self.keys.entry(held.clone()).or_default().push(version);
        held
    }

    /// Removes the last version of a key.
    pub fn pop(&mut self, key: &Bytes) -> Option<Version> {
        let history = self.keys.get_mut(key)?;
        let version = history.pop();
        if history.is_empty() {
            self.keys.remove(key);
        }
        if let Some(version) = &version {
            self.bytes = self.bytes.saturating_sub(cost(key, version));
        }
        version
    }

    pub fn newest(&self, key: &[u8]) -> Option<&Version> {
        self.keys.get(key)?.newest()
    }

    pub fn at(&self, key: &[u8], main: i64) -> Option<(&Bytes, &Version)> {
        let (key, history) = self.keys.get_key_value(key)?;
        Some((key, history.at(main)?))
    }

    pub fn written_at(&self, key: &[u8], revision: Revision) -> Option<&Version> {
        self.keys.get(key)?.written_at(revision)
    }

    /// Returns the keys that existed as of a revision, in order, with their versions.
    pub fn range<'a>(&'a self, range: &'a KeyRange, main: i64) -> impl Iterator<Item = (&'a Bytes, &'a Version)> {
        let bounds = range.bounds();
        let found = bounds.map(|bounds| self.keys.range::<[u8], _>(bounds)).into_iter().flatten();
        found.filter_map(move |(key, history)| Some((key, history.at(main)?)))
    }

    /// Returns all versions of the keys after one, in order of keys.
    pub fn versions_after<'a>(&'a self, after: Option<&'a Bytes>) -> impl Iterator<Item = (&'a Bytes, &'a Version)> {
        use std::ops::Bound;
        let start = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_ref()));
        let found = self.keys.range::<[u8], _>((start, Bound::Unbounded));
        found.flat_map(|(key, history)| history.iter().map(move |version| (key, version)))
    }

    pub fn compact(&mut self, key: &Bytes, main: i64) {
        let Some(history) = self.keys.get_mut(key) else { return };
        let bytes = &mut self.bytes;
        history.compact(main, &mut |version| *bytes = bytes.saturating_sub(cost(key, version)));
        if history.is_empty() {
            self.keys.remove(key);
        }
    }
}

/// Returns the size of one version in bytes.
fn cost(key: &Bytes, version: &Version) -> u64 {
    (key.len() as u64).saturating_add(version.value.len() as u64).saturating_add(VERSION_BYTES)
}
