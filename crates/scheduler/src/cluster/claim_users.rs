//! Which placed pods use which claims. A claim with the mode `ReadWriteOncePod` is in use as long as a placed pod has
//! it.
use std::collections::HashMap;
use std::sync::Arc;

use kelson_meta::ObjectKey;

use crate::view::Pod;

/// Placed pods by claim. Pods without claims take no memory here.
#[derive(Debug, Default)]
pub struct ClaimUsers {
    users: HashMap<ObjectKey, Vec<Arc<str>>>,
    claims: HashMap<Arc<str>, Vec<ObjectKey>>,
    epoch: u64,
}

impl ClaimUsers {
    /// Returns a number that changes when the use of any claim changes.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Adds the claims of a pod that was placed.
    pub fn add(&mut self, pod: &Pod) {
        if pod.spec.claims.is_empty() {
            return;
        }
        self.epoch += 1;
        let keys: Vec<_> = pod.spec.claims.iter().map(|c| ObjectKey::new(pod.namespace(), &*c.name)).collect();
        for key in &keys {
            self.users.entry(key.clone()).or_default().push(Arc::clone(&pod.uid));
        }
        self.claims.insert(Arc::clone(&pod.uid), keys);
    }

    /// Removes the claims of a pod that left its node.
    pub fn remove(&mut self, uid: &str) {
        let Some(keys) = self.claims.remove(uid) else { return };
        self.epoch += 1;
        for key in keys {
            if let Some(users) = self.users.get_mut(&key) {
                users.retain(|u| **u != *uid);
                if users.is_empty() {
                    self.users.remove(&key);
                }
            }
        }
    }

    /// Returns the UIDs of the placed pods that use a claim.
    pub fn of(&self, claim: &ObjectKey) -> &[Arc<str>] {
        self.users.get(claim).map_or(&[], Vec::as_slice)
    }
}
