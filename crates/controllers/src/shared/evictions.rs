//! The pods that a controller is about to delete or has deleted. Each pod gets one event and one deletion, even while
//! the cache is outdated.
use std::collections::HashMap;

use parking_lot::Mutex;

use crate::views::uid_number;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The deletion is scheduled for later.
    Scheduled,
    Deleted,
}

/// The evictions of one controller by pod UID. Its size is bounded by the number of pods, as the controller calls
/// [`forget`](Self::forget) for every deleted pod.
#[derive(Default)]
pub struct Evictions {
    stages: Mutex<HashMap<u128, Stage>>,
}

impl Evictions {
    /// Records that the pod will be deleted later.
    pub fn schedule(&self, uid: &str) {
        self.stages.lock().entry(uid_number(uid)).or_insert(Stage::Scheduled);
    }

    /// Cancels the deletion of a pod. Returns whether one was scheduled.
    pub fn cancel(&self, uid: &str) -> bool {
        let mut stages = self.stages.lock();
        let uid = uid_number(uid);
        let scheduled = stages.get(&uid) == Some(&Stage::Scheduled);
        if scheduled {
            stages.remove(&uid);
        }
        scheduled
    }

    /// Records that the pod's deletion starts now. Returns false if it has already started. See
    /// [`failed`](Self::failed).
    pub fn begin(&self, uid: &str) -> bool {
        self.stages.lock().insert(uid_number(uid), Stage::Deleted) != Some(Stage::Deleted)
    }

    /// Records that the deletion failed, so that it can be started again.
    pub fn failed(&self, uid: &str) {
        self.stages.lock().insert(uid_number(uid), Stage::Scheduled);
    }

    /// Removes the state of a deleted pod. Returns whether its deletion was scheduled for later.
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
