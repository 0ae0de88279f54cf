//! A bounded cache of recent successes, so that a busy client's signature is not verified for every request. Failures
//! are not cached: a token may become valid at any moment. Credentials are stored as digests only.
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use kelson_meta::Clock;

use super::{AsyncTokenAuthenticator, Authenticated, Rejected, TokenAuthenticator};
use crate::bounded::{Bounded, digest};

/// The lifetime of an entry, as upstream: a revoked token may still pass for this long.
const SUCCESS_LIFETIME: Duration = Duration::from_secs(10);
const CACHE_MAX_ENTRIES: usize = 4096;

/// Records how often tokens are found in the cache.
pub trait CacheUse: Send + Sync {
    /// A token was looked up; `hit` is true if it was cached.
    fn asked(&self, hit: bool, took: Duration);
    /// The verification of a token that was not cached begins or ends.
    fn fetching(&self, begins: bool);
    /// A token was verified; `ok` is true for a valid token and for one that no authenticator knows.
    fn fetched(&self, ok: bool);
}

/// Reports the verification of a token, and its end when dropped.
struct Fetching<'a>(Option<&'a dyn CacheUse>);

impl<'a> Fetching<'a> {
    fn begin(observer: Option<&'a dyn CacheUse>) -> Self {
        if let Some(observer) = observer {
            observer.fetching(true);
        }
        Self(observer)
    }
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        if let Some(observer) = self.0 {
            observer.fetching(false);
        }
    }
}

/// Caches successes of another token authenticator for ten seconds.
pub struct CachedTokens {
    inner: Arc<dyn TokenAuthenticator>,
    clock: Arc<dyn Clock>,
    entries: Bounded<Authenticated>,
    observer: Option<Arc<dyn CacheUse>>,
}

impl CachedTokens {
    /// Creates a cache of the answers of `inner`.
    pub fn new(inner: Arc<dyn TokenAuthenticator>, clock: Arc<dyn Clock>) -> Self {
        Self { inner, clock, entries: Bounded::new(CACHE_MAX_ENTRIES), observer: None }
    }

    /// Reports hits and misses to `observer`.
    pub fn with_observer(self, observer: Arc<dyn CacheUse>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    fn asked(&self, hit: bool, begun: Instant) {
        if let Some(observer) = &self.observer {
            observer.asked(hit, begun.elapsed());
        }
    }

    fn fetched<T>(&self, found: &Result<T, Rejected>, begun: Instant) {
        if let Some(observer) = &self.observer {
            observer.fetched(found.is_ok());
        }
        self.asked(false, begun);
    }
}

fn key(token: &str, audiences: &[String]) -> [u8; 32] {
    digest(std::iter::once(token.as_bytes()).chain(audiences.iter().map(String::as_bytes)))
}

impl TokenAuthenticator for CachedTokens {
    fn authenticate_token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let (at, now, begun) = (key(token, audiences), self.clock.now(), Instant::now());
        if let Some(found) = self.entries.get(&at, now) {
            self.asked(true, begun);
            return Ok(Some(found));
        }
        let fetching = Fetching::begin(self.observer.as_deref());
        let found = self.inner.authenticate_token(token, audiences);
        drop(fetching);
        self.fetched(&found, begun);
        let found = found?;
        if let Some(found) = &found {
            self.entries.put(at, found.clone(), now + SUCCESS_LIFETIME, now);
        }
        Ok(found)
    }

    fn as_async(&self, token: &str, audiences: &[String]) -> Option<&dyn AsyncTokenAuthenticator> {
        if self.entries.get(&key(token, audiences), self.clock.now()).is_some() {
            return None;
        }
        self.inner.as_async(token, audiences).map(|_| self as &dyn AsyncTokenAuthenticator)
    }
}

#[async_trait]
impl AsyncTokenAuthenticator for CachedTokens {
    async fn authenticate_later(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let begun = Instant::now();
        let fetching = Fetching::begin(self.observer.as_deref());
        let found = self.inner.prove(token, audiences).await;
        drop(fetching);
        self.fetched(&found, begun);
        let found = found?;
        if let Some(found) = &found {
            // The answer may have taken time: its lifetime begins now.
            let now = self.clock.now();
            self.entries.put(key(token, audiences), found.clone(), now + SUCCESS_LIFETIME, now);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts every token asynchronously; counts its calls.
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

    #[derive(Default)]
    struct RecordedCacheUse(parking_lot::Mutex<Vec<&'static str>>);
    impl CacheUse for RecordedCacheUse {
        fn asked(&self, hit: bool, _: Duration) {
            self.0.lock().push(if hit { "hit" } else { "miss" });
        }
        fn fetching(&self, begins: bool) {
            self.0.lock().push(if begins { "begins" } else { "ends" });
        }
        fn fetched(&self, ok: bool) {
            self.0.lock().push(if ok { "ok" } else { "error" });
        }
    }

    #[tokio::test]
    async fn what_was_waited_for_is_remembered() {
        let remote = Arc::new(Remote(Default::default()));
        let chain = super::super::TokenChain::new(vec![remote.clone()]);
        let heard = Arc::new(RecordedCacheUse::default());
        let cached =
            CachedTokens::new(Arc::new(chain), Arc::new(kelson_meta::SystemClock)).with_observer(heard.clone());
        let cached: &dyn TokenAuthenticator = &cached;
        for _ in 0..3 {
            let found = cached.prove("secret", &[]).await.unwrap().unwrap();
            assert_eq!(found.user.name, "jane");
        }
        assert_eq!(remote.0.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert_eq!(*heard.0.lock(), ["begins", "ends", "ok", "miss", "hit", "hit"]);
    }

    #[test]
    fn keys_are_unambiguous() {
        let a = |s: &[&str]| s.iter().map(|x| (*x).to_owned()).collect::<Vec<_>>();
        assert_ne!(key("ab", &a(&["c"])), key("a", &a(&["bc"])));
        assert_ne!(key("a", &a(&["b", "c"])), key("a", &a(&["bc"])));
    }
}
