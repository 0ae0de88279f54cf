//! State of jobs that is kept between syncs: removed finalizers that are still in the cache, the last written status,
//! and the failures for the back-off. All of it may be lost in a restart, since the caches are then read again.
use std::collections::{HashMap, HashSet};

use kelson_meta::ObjectKey;
use parking_lot::Mutex;

use super::backoff::Failures;

#[derive(Default)]
struct Remembered {
    released: HashSet<String>,
    /// The UID and resourceVersion of the last write of the job.
    written: Option<(String, u64)>,
    failures: Failures,
}

/// State of all jobs, by key.
#[derive(Default)]
pub struct Memory {
    by_key: Mutex<HashMap<ObjectKey, Remembered>>,
}

impl Memory {
    /// Records that the finalizers of these pods are about to be removed. When the returned value is dropped, those not
    /// marked as removed are forgotten, so that an interrupted sync leaves no false record.
    pub fn expect_released<'a>(&'a self, key: &'a ObjectKey, uids: impl IntoIterator<Item = String>) -> Releasing<'a> {
        let open: HashSet<String> = uids.into_iter().collect();
        self.by_key.lock().entry(key.clone()).or_default().released.extend(open.iter().cloned());
        Releasing { memory: self, key, open }
    }

    /// Records that a pod was observed without its finalizer, or that the removal failed.
    pub fn release_observed(&self, key: &ObjectKey, uid: &str) {
        if let Some(r) = self.by_key.lock().get_mut(key) {
            r.released.remove(uid);
        }
    }

    /// Returns the UIDs of pods whose finalizer was removed and is still in the cache.
    pub fn released(&self, key: &ObjectKey) -> HashSet<String> {
        self.by_key.lock().get(key).map(|r| r.released.clone()).unwrap_or_default()
    }

    /// Records the version of a job after a write.
    pub fn wrote(&self, key: &ObjectKey, uid: &str, version: &str) {
        // A version that is not a number cannot be compared, so it gives no protection against an outdated cache.
        let written = version.parse().ok().map(|v| (uid.to_owned(), v));
        self.by_key.lock().entry(key.clone()).or_default().written = written;
    }

    /// Whether the cached job is older than the last write. Its pods may then be without finalizers although the cached
    /// status does not count them.
    pub fn is_stale(&self, key: &ObjectKey, uid: &str, version: &str) -> bool {
        let held = self.by_key.lock();
        let written = held.get(key).and_then(|r| r.written.as_ref());
        written.is_some_and(|(of, at)| of == uid && version.parse::<u64>().is_ok_and(|v| v < *at))
    }

    /// Returns the failures since the last success.
    pub fn failures(&self, key: &ObjectKey) -> Failures {
        self.by_key.lock().get(key).map(|r| r.failures).unwrap_or_default()
    }

    /// Records failures that are now in the status.
    pub fn note_failures(&self, key: &ObjectKey, failures: Failures) {
        self.by_key.lock().entry(key.clone()).or_default().failures = failures;
    }

    /// Removes the state of a deleted or finished job.
    pub fn forget(&self, key: &ObjectKey) {
        self.by_key.lock().remove(key);
    }
}

/// Finalizers that are being removed.
pub struct Releasing<'a> {
    memory: &'a Memory,
    key: &'a ObjectKey,
    open: HashSet<String>,
}

impl Releasing<'_> {
    /// Records that the pod's finalizer was removed.
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
