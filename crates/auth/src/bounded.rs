//! A bounded cache of answers by the digest of their question: the question itself, for instance a token, is not
//! stored.
use std::collections::HashMap;

use jiff::Timestamp;
use parking_lot::RwLock;
use sha2::{Digest, Sha256};

/// A map from digests to entries that expire.
pub(crate) struct Bounded<T> {
    max: usize,
    entries: RwLock<HashMap<[u8; 32], (T, Timestamp)>>,
}

impl<T: Clone> Bounded<T> {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, entries: RwLock::new(HashMap::new()) }
    }
    pub(crate) fn get(&self, key: &[u8; 32], now: Timestamp) -> Option<T> {
        self.entries.read().get(key).filter(|(_, end)| now < *end).map(|(v, _)| v.clone())
    }
    pub(crate) fn put(&self, key: [u8; 32], value: T, end: Timestamp, now: Timestamp) {
        let mut entries = self.entries.write();
        if entries.len() >= self.max {
            entries.retain(|_, (_, end)| now < *end);
            // When it is full of valid entries, it is cleared instead of growing or searching for a victim.
            if entries.len() >= self.max {
                entries.clear();
            }
        }
        entries.insert(key, (value, end));
    }
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.read().len()
    }
}

/// Returns the key of an answer, from which the question cannot be recovered.
pub(crate) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded() {
        let cache = Bounded::new(3);
        let t = |s| Timestamp::from_second(s).unwrap();
        for i in 0..3u8 {
            cache.put([i; 32], i, t(10 + i64::from(i)), t(0));
        }
        assert_eq!(cache.get(&[0; 32], t(9)), Some(0));
        assert_eq!(cache.get(&[0; 32], t(10)), None);
        cache.put([3; 32], 3, t(20), t(10));
        assert_eq!(cache.len(), 3, "the expired one made room");
        cache.put([4; 32], 4, t(20), t(10));
        assert_eq!(cache.len(), 1, "full of live ones: started over");
    }
}
