//! How many clients watch what: by that, a write is known to cost more than its answer. Watchers of this process are not
//! counted: they read the record itself.
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use kelson_store::Resource;
use parking_lot::RwLock;

/// Open watches, by what they see.
#[derive(Default)]
pub struct Watches {
    /// By a digest of resource, namespace and name; both are empty where a watch sees all.
    open: RwLock<HashMap<u64, u32>>,
    hasher: RandomState,
}

/// Counts a watch until it is dropped.
pub struct Watched {
    watches: Arc<Watches>,
    key: u64,
}

impl Watches {
    /// Counts a watch of a resource, in one namespace or all, for one name or all.
    pub fn open(self: &Arc<Self>, resource: Resource, namespace: &str, name: &str) -> Watched {
        let key = self.key(resource, namespace, name);
        *self.open.write().entry(key).or_default() += 1;
        Watched { watches: Arc::clone(self), key }
    }

    /// How many hear of a write to this object.
    pub fn of(&self, resource: Resource, namespace: &str, name: &str) -> u32 {
        let open = self.open.read();
        if open.is_empty() {
            return 0;
        }
        let count = |namespace, name| open.get(&self.key(resource, namespace, name)).copied().unwrap_or(0);
        let mut all = count("", "");
        if !namespace.is_empty() {
            all += count(namespace, "");
        }
        if !name.is_empty() {
            all += count(namespace, name);
        }
        all
    }

    fn key(&self, resource: Resource, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((resource, namespace, name))
    }
}

impl Drop for Watched {
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
    fn who_hears_of_a_write() {
        let watches = Arc::new(Watches::default());
        let (pods, maps) = (Resource::new("", "pods"), Resource::new("", "configmaps"));
        let held = [("", ""), ("a", ""), ("a", "x"), ("b", "")].map(|(ns, name)| watches.open(pods, ns, name));
        let heard =
            [("a", "x"), ("a", "y"), ("b", "x"), ("c", "x"), ("a", "")].map(|(ns, name)| watches.of(pods, ns, name));
        assert_eq!((heard, watches.of(maps, "a", "x")), ([3, 2, 2, 1, 2], 0));
        drop(held);
        assert!(watches.open.read().is_empty());
    }
}
