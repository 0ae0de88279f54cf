//! Bounded memory of recent successes, so that a busy client's signature is not verified at every request. Failures are
//! not remembered: a token may become valid at any moment. Credentials are kept as digests only.
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kelson_meta::Clock;

use super::{AsyncTokenAuthenticator, Authenticated, Rejected, TokenAuthenticator};
use crate::bounded::{Bounded, digest};

/// As upstream: a revoked token may still pass for this long.
const SUCCESS_LIFETIME: Duration = Duration::from_secs(10);
const CACHE_MAX_ENTRIES: usize = 4096;

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

fn key(token: &str, audiences: &[String]) -> [u8; 32] {
    digest(std::iter::once(token.as_bytes()).chain(audiences.iter().map(String::as_bytes)))
}

impl TokenAuthenticator for CachedTokens {
    fn authenticate_token(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, Rejected> {
        let (at, now) = (key(token, audiences), self.clock.now());
        if let Some(found) = self.entries.get(&at, now) {
            return Ok(Some(found));
        }
        let found = self.inner.authenticate_token(token, audiences)?;
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
        let found = self.inner.prove(token, audiences).await?;
        if let Some(found) = &found {
            // The answer may have taken its time: its life begins now.
            let now = self.clock.now();
            self.entries.put(key(token, audiences), found.clone(), now + SUCCESS_LIFETIME, now);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_ne!(key("ab", &a(&["c"])), key("a", &a(&["bc"])));
        assert_ne!(key("a", &a(&["b", "c"])), key("a", &a(&["bc"])));
    }
}
