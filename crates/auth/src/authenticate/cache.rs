//! Bounded memory of recent successes, so that a busy client's signature is not verified at every request. Failures are
//! not remembered: a token may become valid at any moment. Credentials are kept as digests only.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_meta::Clock;
use parking_lot::RwLock;
use sha2::{Digest, Sha256};

use super::{Authenticated, Rejected, TokenAuthenticator};

/// As upstream: a revoked token may still pass for this long.
const SUCCESS_LIFETIME: Duration = Duration::from_secs(10);
const CACHE_MAX_ENTRIES: usize = 4096;

/// A map of digests whose entries end by themselves.
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
            // Full of live entries: start over rather than grow or search for a victim.
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

/// Remembers successes of another token authenticator for ten seconds.
pub struct CachedTokens {
    inner: Arc<dyn TokenAuthenticator>,
    clock: Arc<dyn Clock>,
    entries: Bounded<Authenticated>,
}

impl CachedTokens {
    /// In front of `inner`.
    pub fn new(inner: Arc<dyn TokenAuthenticator>, clock: Arc<dyn Clock>) -> Self {
        Self { inner, clock, entries: Bounded::new(CACHE_MAX_ENTRIES) }
    }
}

fn digest(token: &str, audiences: &[String]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update((token.len() as u64).to_be_bytes());
    hash.update(token);
    for audience in audiences {
        hash.update((audience.len() as u64).to_be_bytes());
        hash.update(audience);
    }
    hash.finalize().into()
}

impl TokenAuthenticator for CachedTokens {
    fn authenticate_token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let (key, now) = (digest(token, audiences), self.clock.now());
        if let Some(found) = self.entries.get(&key, now) {
            return Ok(Some(found));
        }
        let found = self.inner.authenticate_token(token, audiences)?;
        if let Some(found) = &found {
            self.entries.put(key, found.clone(), now + SUCCESS_LIFETIME, now);
        }
        Ok(found)
    }
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

    #[test]
    fn keys_are_unambiguous() {
        let a = |s: &[&str]| s.iter().map(|x| (*x).to_owned()).collect::<Vec<_>>();
        assert_ne!(digest("ab", &a(&["c"])), digest("a", &a(&["bc"])));
        assert_ne!(digest("a", &a(&["b", "c"])), digest("a", &a(&["bc"])));
    }
}
