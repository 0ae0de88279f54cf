//! Creations and deletions that a controller has requested and not yet observed in its cache, so that an outdated cache
//! never causes a second request (upstream `controller_utils.go`, ControllerExpectations).
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use kelson_client::{Change, Object};
use kelson_meta::ObjectKey;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ownership::controller_key;
use crate::views::PodView;

/// The time after which unobserved creations and deletions are no longer expected.
const TIMEOUT: Duration = Duration::from_secs(300);

struct Expected {
    creations: usize,
    deletions: HashSet<String>,
    since: Instant,
}

/// The expectations of one controller by the owner's key.
///
/// A sync calls [`satisfied`](Self::satisfied) first and creates or deletes nothing while the result is false. Before
/// it sends requests it calls [`expect`](Self::expect); the handlers of the informer then record each observed change.
#[derive(Default)]
pub struct Expectations {
    by_key: Mutex<HashMap<ObjectKey, Expected>>,
}

impl Expectations {
    /// Whether everything expected has been observed, or the expectations have expired.
    pub fn satisfied(&self, key: &ObjectKey) -> bool {
        self.by_key
            .lock()
            .get(key)
            .is_none_or(|e| (e.creations == 0 && e.deletions.is_empty()) || e.since.elapsed() > TIMEOUT)
    }
    /// Expects `creations` and the deletions of these UIDs. Replaces previous expectations.
    pub fn expect(&self, key: &ObjectKey, creations: usize, deletions: impl IntoIterator<Item = String>) {
        let new = Expected { creations, deletions: deletions.into_iter().collect(), since: Instant::now() };
        self.by_key.lock().insert(key.clone(), new);
    }
    /// Expects `count` creations and no deletion.
    pub fn expect_creations(&self, key: &ObjectKey, count: usize) {
        self.expect(key, count, []);
    }
    /// Expects the deletions of these UIDs and no creation.
    pub fn expect_deletions(&self, key: &ObjectKey, uids: impl IntoIterator<Item = String>) {
        self.expect(key, 0, uids);
    }
    /// Lowers the expected creations by `count` after creations that failed or were skipped.
    pub fn lower_creations(&self, key: &ObjectKey, count: usize) {
        if let Some(e) = self.by_key.lock().get_mut(key) {
            e.creations = e.creations.saturating_sub(count);
        }
    }
    /// Records an observed creation.
    pub fn creation_observed(&self, key: &ObjectKey) {
        self.lower_creations(key, 1);
    }
    /// Records a deletion that was observed, or that failed and will not be observed.
    pub fn deletion_observed(&self, key: &ObjectKey, uid: &str) {
        if let Some(e) = self.by_key.lock().get_mut(key) {
            e.deletions.remove(uid);
        }
    }
    /// Updates the expectations of a changed pod's controller, if that is an `O`. A pod with a deletion timestamp
    /// counts as deleted.
    pub fn pod_observed<O: Object>(&self, change: &Change<PodView>) {
        let pod = change.object();
        let Some(owner) = controller_key::<O>(&pod.metadata) else { return };
        match change {
            Change::Added(_) if !pod.metadata.is_deleting() => self.creation_observed(&owner),
            Change::Updated { .. } if !pod.metadata.is_deleting() => {}
            _ => self.deletion_observed(&owner, &pod.metadata.uid),
        }
    }
    /// Removes the expectations of a deleted owner.
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
