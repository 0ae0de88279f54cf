//! What a controller has asked for and not yet seen in its cache, so that a stale cache never makes it ask twice
//! (upstream `controller_utils.go`, ControllerExpectations).
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use kelson_client::{Change, Object};
use kelson_meta::ObjectKey;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ownership::controller_key;
use crate::views::PodView;

/// After this, what was expected is taken as never coming.
const TIMEOUT: Duration = Duration::from_secs(300);

struct Expected {
    creations: usize,
    deletions: HashSet<String>,
    since: Instant,
}

/// Expectations of one controller, by the key of the owner.
#[derive(Default)]
pub struct Expectations {
    by_key: Mutex<HashMap<ObjectKey, Expected>>,
}

impl Expectations {
    /// Whether everything expected has been seen, or waiting is over.
    pub fn satisfied(&self, key: &ObjectKey) -> bool {
        self.by_key
            .lock()
            .get(key)
            .is_none_or(|e| (e.creations == 0 && e.deletions.is_empty()) || e.since.elapsed() > TIMEOUT)
    }
    /// Expects `creations` and the deletions of these UIDs, and forgets what was expected before.
    pub fn expect(&self, key: &ObjectKey, creations: usize, deletions: impl IntoIterator<Item = String>) {
        let new = Expected { creations, deletions: deletions.into_iter().collect(), since: Instant::now() };
        self.by_key.lock().insert(key.clone(), new);
    }
    /// Expects creations alone.
    pub fn expect_creations(&self, key: &ObjectKey, count: usize) {
        self.expect(key, count, []);
    }
    /// Expects deletions alone.
    pub fn expect_deletions(&self, key: &ObjectKey, uids: impl IntoIterator<Item = String>) {
        self.expect(key, 0, uids);
    }
    /// So many creations failed, or were given up, and will not be seen.
    pub fn lower_creations(&self, key: &ObjectKey, count: usize) {
        if let Some(e) = self.by_key.lock().get_mut(key) {
            e.creations = e.creations.saturating_sub(count);
        }
    }
    /// A creation was seen.
    pub fn creation_observed(&self, key: &ObjectKey) {
        self.lower_creations(key, 1);
    }
    /// A deletion was seen, or failed and will not be seen.
    pub fn deletion_observed(&self, key: &ObjectKey, uid: &str) {
        if let Some(e) = self.by_key.lock().get_mut(key) {
            e.deletions.remove(uid);
        }
    }
    /// Notes what a change of a pod says of the expectations of its controller, if that is an `O`. A pod that is being
    /// deleted counts as deleted.
    pub fn pod_observed<O: Object>(&self, change: &Change<PodView>) {
        let pod = change.object();
        let Some(owner) = controller_key::<O>(&pod.metadata) else { return };
        match change {
            Change::Added(_) if !pod.metadata.is_deleting() => self.creation_observed(&owner),
            Change::Updated { .. } if !pod.metadata.is_deleting() => {}
            _ => self.deletion_observed(&owner, &pod.metadata.uid),
        }
    }
    /// The owner is gone.
    pub fn forget(&self, key: &ObjectKey) {
        self.by_key.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_until_seen_or_too_long() {
        let e = Expectations::default();
        let k = ObjectKey::new("a", "b");
        assert!(e.satisfied(&k));
        e.expect_creations(&k, 2);
        e.creation_observed(&k);
        assert!(!e.satisfied(&k));
        e.creation_observed(&k);
        e.creation_observed(&k);
        assert!(e.satisfied(&k));
        e.expect_deletions(&k, ["u".to_owned()]);
        e.deletion_observed(&k, "other");
        assert!(!e.satisfied(&k));
        tokio::time::advance(TIMEOUT + Duration::from_secs(1)).await;
        assert!(e.satisfied(&k));
        e.expect_deletions(&k, ["u".to_owned()]);
        e.deletion_observed(&k, "u");
        assert!(e.satisfied(&k));
    }
}
