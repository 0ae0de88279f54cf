//! Numbers of open watches, by which flow control estimates the cost of a write. Watchers in this process are not counted, because
//! they read the record itself.
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use kelson_store::Resource;
use parking_lot::RwLock;

/// Open watches by their scope.
#[derive(Default)]
pub struct Watches {
    /// Count by a hash of resource, namespace and name; an empty namespace or name means all.
    open: RwLock<HashMap<u64, u32>>,
    hasher: RandomState,
}

/// Counts a watch until it is dropped.
pub struct OpenWatch {
    watches: Arc<Watches>,
    key: u64,
}

impl Watches {
    /// Counts a watch of a resource in one namespace or all, for one name or all.
    pub fn open(self: &Arc<Self>, resource: Resource, namespace: &str, name: &str) -> OpenWatch {
        let key = self.key(resource, namespace, name);
        *self.open.write().entry(key).or_default() += 1;
        OpenWatch { watches: Arc::clone(self), key }
    }

    /// The number of watches that get an event for a write of this object.
    pub fn count(&self, resource: Resource, namespace: &str, name: &str) -> u32 {
        let open = self.open.read();
        if open.is_empty() {
            return 0;
        }
        let open_at = |namespace, name| open.get(&self.key(resource, namespace, name)).copied().unwrap_or(0);
        let mut all = open_at("", "");
        if !namespace.is_empty() {
            all += open_at(namespace, "");
        }
        if !name.is_empty() {
            all += open_at(namespace, name);
        }
        all
    }

    fn key(&self, resource: Resource, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((resource, namespace, name))
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        let mut open = self.watches.open.write();
        if let Some(count) = open.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_counted_by_scope() {
        let watches = Arc::new(Watches::default());
        let (pods, maps) = (Resource::new("", "pods"), Resource::new("", "configmaps"));
        let held = [("", ""), ("a", ""), ("a", "x"), ("b", "")].map(|(ns, name)| watches.open(pods, ns, name));
        let heard =
            [("a", "x"), ("a", "y"), ("b", "x"), ("c", "x"), ("a", "")].map(|(ns, name)| watches.count(pods, ns, name));
        assert_eq!((heard, watches.count(maps, "a", "x")), ([3, 2, 2, 1, 2], 0));
        drop(held);
        assert!(watches.open.read().is_empty());
    }
}
