//! Bounded memory of recent successes, so that a busy client's signature is not verified at every request. Failures are
//! not remembered: a token may become valid at any moment. Credentials are kept as digests only.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use kelson_meta::Clock;
use parking_lot::RwLock;
use sha2::{Digest, Sha256};

use super::{AsyncTokenAuthenticator, Authenticated, Rejected, TokenAuthenticator};

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

    fn as_async(&self, token: &str, audiences: &[String]) -> Option<&dyn AsyncTokenAuthenticator> {
        if self.entries.get(&digest(token, audiences), self.clock.now()).is_some() {
            return None;
        }
        self.inner.as_async(token, audiences).map(|_| self as &dyn AsyncTokenAuthenticator)
    }
}

#[async_trait]
impl AsyncTokenAuthenticator for CachedTokens {
    async fn authenticate_later(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let found = self.inner.prove(token, audiences).await?;
        if let Some(found) = &found {
            // The answer may have taken its time: its life begins now.
            let now = self.clock.now();
            self.entries.put(digest(token, audiences), found.clone(), now + SUCCESS_LIFETIME, now);
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

    /// Knows every token, after a while; counts how often it is asked.
    struct Remote(std::sync::atomic::AtomicUsize);
    impl TokenAuthenticator for Remote {
        fn authenticate_token(&self, _: &str, _: &[String]) -> Result<Option<Authenticated>, Rejected> {
            Ok(None)
        }
        fn as_async(&self, _: &str, _: &[String]) -> Option<&dyn AsyncTokenAuthenticator> {
            Some(self)
        }
    }
    #[async_trait]
    impl AsyncTokenAuthenticator for Remote {
        async fn authenticate_later(&self, _: &str, _: &[String]) -> Result<Option<Authenticated>, Rejected> {
            tokio::task::yield_now().await;
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(Some(Authenticated::new(crate::UserInfo::new("jane", ["dev"]))))
        }
    }

    #[tokio::test]
    async fn what_was_waited_for_is_remembered() {
        let remote = Arc::new(Remote(Default::default()));
        let chain = super::super::TokenChain::new(vec![remote.clone()]);
        let cached = CachedTokens::new(Arc::new(chain), Arc::new(kelson_meta::SystemClock));
        let cached: &dyn TokenAuthenticator = &cached;
        for _ in 0..3 {
            let found = cached.prove("secret", &[]).await.unwrap().unwrap();
            assert_eq!(found.user.name, "jane");
        }
        assert_eq!(remote.0.load(std::sync::atomic::Ordering::Relaxed), 1);
    }

    #[test]
    fn keys_are_unambiguous() {
        let a = |s: &[&str]| s.iter().map(|x| (*x).to_owned()).collect::<Vec<_>>();
        assert_ne!(digest("ab", &a(&["c"])), digest("a", &a(&["bc"])));
        assert_ne!(digest("a", &a(&["b", "c"])), digest("a", &a(&["bc"])));
    }
}
