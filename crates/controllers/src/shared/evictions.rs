//! Which pods a controller is about to delete and which it has deleted, so that each gets one event and is deleted once, whatever the
//! cache shows meanwhile.
use std::collections::HashMap;

use parking_lot::Mutex;

use crate::views::uid_number;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The deletion waits for its time.
    Scheduled,
    Deleted,
}

/// The evictions of one controller, by the UID of the pod. Bounded by the number of pods: [`forget`](Self::forget) is called
/// when a pod is gone.
#[derive(Default)]
pub struct Evictions {
    stages: Mutex<HashMap<u128, Stage>>,
}

impl Evictions {
    /// The pod is to be deleted later.
    pub fn schedule(&self, uid: &str) {
        self.stages.lock().entry(uid_number(uid)).or_insert(Stage::Scheduled);
    }

    /// The pod is not to be deleted; gives whether it was to be.
    pub fn cancel(&self, uid: &str) -> bool {
        let mut stages = self.stages.lock();
        let uid = uid_number(uid);
        let scheduled = stages.get(&uid) == Some(&Stage::Scheduled);
        if scheduled {
            stages.remove(&uid);
        }
        scheduled
    }

    /// The pod is being deleted now; gives whether that is news. See [`failed`](Self::failed).
    pub fn begin(&self, uid: &str) -> bool {
        self.stages.lock().insert(uid_number(uid), Stage::Deleted) != Some(Stage::Deleted)
    }

    /// The deletion that was begun failed and is tried again.
    pub fn failed(&self, uid: &str) {
        self.stages.lock().insert(uid_number(uid), Stage::Scheduled);
    }

    /// The pod is gone; gives whether it was to be deleted later.
    pub fn forget(&self, uid: &str) -> bool {
        self.stages.lock().remove(&uid_number(uid)) == Some(Stage::Scheduled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_deleted_once() {
        let e = Evictions::default();
        assert!(!e.cancel("a"));
        e.schedule("a");
        e.schedule("a");
        assert!(e.cancel("a") && !e.cancel("a"));
        e.schedule("a");
        assert!(e.begin("a") && !e.begin("a"));
        e.schedule("a");
        assert!(!e.begin("a") && !e.cancel("a"), "a second look changes nothing");
        e.failed("a");
        assert!(e.begin("a"), "tried again");
        assert!(!e.forget("a"));
        e.schedule("a");
        assert!(e.forget("a") && e.stages.lock().is_empty());
    }
}
