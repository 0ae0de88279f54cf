//! What the controller remembers of jobs between two looks: finalizers it has taken and not yet seen gone, the status it
//! wrote last, failures that replacements wait for. All of it can be lost: after a restart the caches are read anew.
use std::collections::{HashMap, HashSet};

use kelson_meta::ObjectKey;
use parking_lot::Mutex;

use super::backoff::Failures;

#[derive(Default)]
struct Remembered {
    released: HashSet<String>,
    /// UID and resource version of the job as it was written last.
    written: Option<(String, u64)>,
    failures: Failures,
}

/// What is known of each job beyond the caches.
#[derive(Default)]
pub struct Memory {
    by_key: Mutex<HashMap<ObjectKey, Remembered>>,
}

impl Memory {
    /// Finalizers of these pods are about to be taken. Those that were not by the time the answer is dropped are forgotten: a look
    /// that is cut short, as at the controllers' end, has taken nothing that it knows of.
    pub fn expect_released<'a>(&'a self, key: &'a ObjectKey, uids: impl IntoIterator<Item = String>) -> Releasing<'a> {
        let open: HashSet<String> = uids.into_iter().collect();
        self.by_key.lock().entry(key.clone()).or_default().released.extend(open.iter().cloned());
        Releasing { memory: self, key, open }
    }

    /// A pod was seen without its finalizer, or its finalizer was not taken after all.
    pub fn release_observed(&self, key: &ObjectKey, uid: &str) {
        if let Some(r) = self.by_key.lock().get_mut(key) {
            r.released.remove(uid);
        }
    }

    /// Pods whose finalizer was taken and that are still in the cache with it.
    pub fn released(&self, key: &ObjectKey) -> HashSet<String> {
        self.by_key.lock().get(key).map(|r| r.released.clone()).unwrap_or_default()
    }

    /// The job was written and has this version now.
    pub fn wrote(&self, key: &ObjectKey, uid: &str, version: &str) {
        // A version that is no number cannot be compared; then there is no guard against an old cache.
        let written = version.parse().ok().map(|v| (uid.to_owned(), v));
        self.by_key.lock().entry(key.clone()).or_default().written = written;
    }

    /// Whether the cached job is older than what was written: its pods may show finalizers gone that its status does
    /// not know to be counted.
    pub fn is_stale(&self, key: &ObjectKey, uid: &str, version: &str) -> bool {
        let held = self.by_key.lock();
        let written = held.get(key).and_then(|r| r.written.as_ref());
        written.is_some_and(|(of, at)| of == uid && version.parse::<u64>().is_ok_and(|v| v < *at))
    }

    /// Failures so far.
    pub fn failures(&self, key: &ObjectKey) -> Failures {
        self.by_key.lock().get(key).map(|r| r.failures).unwrap_or_default()
    }

    /// Failures are in the status now.
    pub fn note_failures(&self, key: &ObjectKey, failures: Failures) {
        self.by_key.lock().entry(key.clone()).or_default().failures = failures;
    }

    /// The job is gone or at its end.
    pub fn forget(&self, key: &ObjectKey) {
        self.by_key.lock().remove(key);
    }
}

/// Finalizers that are being taken.
pub struct Releasing<'a> {
    memory: &'a Memory,
    key: &'a ObjectKey,
    open: HashSet<String>,
}

impl Releasing<'_> {
    /// The finalizer of this pod was taken.
    pub fn taken(&mut self, uid: &str) {
        self.open.remove(uid);
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        for uid in &self.open {
            self.memory.release_observed(self.key, uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_taken_is_not_remembered() {
        let (memory, key) = (Memory::default(), ObjectKey::new("n", "j"));
        let mut releasing = memory.expect_released(&key, ["a".to_owned(), "b".to_owned()]);
        assert_eq!(memory.released(&key).len(), 2, "the pods may be seen without it before the answer is there");
        releasing.taken("a");
        drop(releasing);
        assert_eq!(memory.released(&key), HashSet::from(["a".to_owned()]));
    }

    #[test]
    fn a_cache_older_than_the_last_write_is_stale() {
        let (m, k) = (Memory::default(), ObjectKey::new("n", "j"));
        assert!(!m.is_stale(&k, "u", "1"));
        m.wrote(&k, "u", "12");
        let rows = [("u", "9", true), ("u", "12", false), ("u", "13", false), ("other", "9", false), ("u", "x", false)];
        for (uid, version, want) in rows {
            assert_eq!(m.is_stale(&k, uid, version), want, "{uid} {version}");
        }
        let mut releasing = m.expect_released(&k, ["a".to_owned(), "b".to_owned()]);
        releasing.taken("a");
        releasing.taken("b");
        drop(releasing);
        m.release_observed(&k, "a");
        assert_eq!(m.released(&k), HashSet::from(["b".to_owned()]));
        m.forget(&k);
        assert!(!m.is_stale(&k, "u", "9") && m.released(&k).is_empty());
    }
}
