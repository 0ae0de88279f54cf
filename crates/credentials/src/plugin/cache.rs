//! Answers of one provider, until they expire. Keys are an identity (a service account, or none) and a scope: image,
//! registry or global; looked up in that order. Time is an argument, so that tests can step it, and monotonic: no
//! answer lives longer because the node's clock is set back.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::protocol::{KeyType, Login};
use crate::reference;

/// Answers kept per provider; beyond it, those that expire soonest go.
pub const ENTRIES_MAX: usize = 16_384;
/// Shortest time between two purges of expired answers; they happen on use only.
pub const PURGE_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// The expiry of answers whose time would overflow: thirty years.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// A plugin's answer, shared by all that may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The scope in which the answer may be shared.
    pub key_type: KeyType,
    /// The time for which the plugin wants it cached; `None` uses the configuration.
    pub cache_duration: Option<Duration>,
    /// Logins by image pattern.
    pub logins: Vec<(String, Login)>,
}

/// The cache of one provider.
#[derive(Debug)]
pub struct Cache {
    entries: HashMap<Box<[u8]>, CacheEntry>,
    purged: Instant,
    key: Vec<u8>,
}

#[derive(Debug)]
struct CacheEntry {
    answer: Arc<Answer>,
    expires: Instant,
}

impl Cache {
    /// An empty cache.
    pub fn new(now: Instant) -> Self {
        Self { entries: HashMap::new(), purged: now, key: Vec::new() }
    }

    /// Returns the number of entries, including expired ones.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The answer for an image, if one is fresh.
    pub fn get(&mut self, now: Instant, identity: &[u8], image: &str) -> Option<Arc<Answer>> {
        if now >= later(self.purged, PURGE_INTERVAL) {
            self.purge(now);
        }
        for key_type in [KeyType::Image, KeyType::Registry, KeyType::Global] {
            key(&mut self.key, identity, key_type, image);
            if let Some(entry) = self.entries.get(self.key.as_slice()) {
                if now < entry.expires {
                    return Some(entry.answer.clone());
                }
                self.entries.remove(self.key.as_slice());
            }
        }
        None
    }

    /// Keeps an answer given for `image` until `expires`.
    pub fn put(&mut self, now: Instant, identity: &[u8], image: &str, answer: Arc<Answer>, expires: Instant) {
        if self.entries.len() >= ENTRIES_MAX {
            self.make_room(now);
        }
        key(&mut self.key, identity, answer.key_type, image);
        self.entries.insert(self.key.as_slice().into(), CacheEntry { answer, expires });
    }

    fn purge(&mut self, now: Instant) {
        self.entries.retain(|_, e| now < e.expires);
        self.purged = now;
    }

    fn make_room(&mut self, now: Instant) {
        self.purge(now);
        if self.entries.len() < ENTRIES_MAX {
            return;
        }
        let mut ends: Vec<Instant> = self.entries.values().map(|e| e.expires).collect();
        let (_, border, _) = ends.select_nth_unstable(ENTRIES_MAX / 16);
        let border = *border;
        self.entries.retain(|_, e| e.expires > border);
    }
}

/// Returns `t` plus `d`, or [`FAR`] if that overflows.
pub fn later(t: Instant, d: Duration) -> Instant {
    t.checked_add(d).unwrap_or(t + FAR)
}

/// Identity with its length, reach, and what the reach needs of the image.
pub(super) fn key(into: &mut Vec<u8>, identity: &[u8], key_type: KeyType, image: &str) {
    into.clear();
    into.extend_from_slice(&(identity.len() as u64).to_be_bytes());
    into.extend_from_slice(identity);
    match key_type {
        KeyType::Image => {
            into.push(b'i');
            into.extend_from_slice(image.as_bytes());
        }
        KeyType::Registry => {
            into.push(b'r');
            into.extend_from_slice(reference::registry(image).as_bytes());
        }
        KeyType::Global => into.push(b'g'),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    fn answer(key_type: KeyType, user: &str) -> Arc<Answer> {
        let login = Login { username: user.to_owned(), password: "p".into() };
        Arc::new(Answer { key_type, cache_duration: None, logins: vec![("r.io".to_owned(), login)] })
    }

    fn at(seconds: u64) -> Instant {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        *BEGAN + Duration::from_secs(seconds)
    }

    fn user(c: &mut Cache, t: u64, who: &str, image: &str) -> Option<String> {
        c.get(at(t), who.as_bytes(), image).map(|a| a.logins[0].1.username.clone())
    }

    #[test]
    fn image_before_registry_before_global() {
        let mut c = Cache::new(at(0));
        c.put(at(0), b"", "r.io/a", answer(KeyType::Global, "global"), at(300));
        assert_eq!(user(&mut c, 1, "", "other.io/x").as_deref(), Some("global"));
        c.put(at(0), b"", "r.io/a", answer(KeyType::Registry, "registry"), at(200));
        assert_eq!(user(&mut c, 1, "", "r.io/b").as_deref(), Some("registry"));
        c.put(at(0), b"", "r.io/a", answer(KeyType::Image, "image"), at(100));
        assert_eq!(user(&mut c, 1, "", "r.io/a").as_deref(), Some("image"));
        // Each gives way to the next as it expires.
        assert_eq!(user(&mut c, 99, "", "r.io/a").as_deref(), Some("image"));
        assert_eq!(user(&mut c, 100, "", "r.io/a").as_deref(), Some("registry"));
        assert_eq!(user(&mut c, 200, "", "r.io/a").as_deref(), Some("global"));
        assert_eq!(user(&mut c, 300, "", "r.io/a"), None);
        assert!(c.is_empty());
    }

    #[test]
    fn identities_see_only_their_own() {
        let mut c = Cache::new(at(0));
        c.put(at(0), b"sa-a", "r.io/a", answer(KeyType::Global, "a"), at(100));
        assert_eq!(user(&mut c, 1, "sa-a", "r.io/b").as_deref(), Some("a"));
        for other in ["", "sa-b", "sa-", "sa-ag"] {
            assert_eq!(user(&mut c, 1, other, "r.io/a"), None);
        }
        // No identity and image together spell another identity's key.
        c.put(at(0), b"", "sa-ar.io/a", answer(KeyType::Image, "none"), at(100));
        assert_eq!(user(&mut c, 1, "sa-b", "r.io/a"), None);
    }

    #[test]
    fn a_repository_called_like_a_registry_is_another_key() {
        let mut c = Cache::new(at(0));
        c.put(at(0), b"", "r.io", answer(KeyType::Image, "image"), at(100));
        assert_eq!(user(&mut c, 1, "", "r.io/a"), None);
    }

    #[test]
    fn others_are_purged_on_use_every_fifteen_minutes() {
        let mut c = Cache::new(at(0));
        c.put(at(0), b"", "r.io/a", answer(KeyType::Image, "a"), at(60));
        c.put(at(0), b"", "r.io/b", answer(KeyType::Image, "b"), at(10_000));
        assert_eq!(user(&mut c, 899, "", "r.io/x"), None);
        assert_eq!(c.len(), 2);
        assert_eq!(user(&mut c, 900, "", "r.io/x"), None);
        assert_eq!(c.len(), 1);
        c.put(at(900), b"", "r.io/a", answer(KeyType::Image, "a"), at(901));
        assert_eq!(user(&mut c, 1799, "", "r.io/x"), None);
        assert_eq!(c.len(), 2);
        assert_eq!(user(&mut c, 1800, "", "r.io/b").as_deref(), Some("b"));
        assert_eq!(c.len(), 1);
    }

    #[test]
    fn bounded() {
        let mut c = Cache::new(at(0));
        for i in 0..=ENTRIES_MAX {
            c.put(at(0), b"", &format!("r.io/{i}"), answer(KeyType::Image, "x"), at(1000 + i as u64));
        }
        assert!(c.len() <= ENTRIES_MAX && c.len() > ENTRIES_MAX / 2);
        assert_eq!(user(&mut c, 1, "", "r.io/0"), None);
        assert!(user(&mut c, 1, "", &format!("r.io/{ENTRIES_MAX}")).is_some());
    }
}
