//! The store, as authentication, authorization and admission read it.
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kelson_auth::Objects;
use kelson_store::{Record, Resource, Store};
use parking_lot::Mutex;
use serde_json::Value;

/// Limits of the cached trees: their number, and the JSON bytes of a record that is cached. Together at most some ten megabytes.
const TREES_MAX: usize = 512;
const TREE_JSON_BYTES_MAX: usize = 8 * 1024;

/// Reads the store's current state.
pub struct StoreObjects {
    store: Store,
    /// Trees of namespaces, accounts and classes, which every write of a pod reads, by the revision of their record. A revision
    /// belongs to one record, so a changed object never has an outdated tree.
    trees: Mutex<BTreeMap<u64, Arc<Value>>>,
}

impl StoreObjects {
    /// Reads from `store`.
    pub fn new(store: Store) -> Self {
        Self { store, trees: Mutex::default() }
    }

    fn tree_of(&self, record: &Record) -> Option<Arc<Value>> {
        if let Some(tree) = self.trees.lock().get(&record.revision()) {
            return Some(Arc::clone(tree));
        }
        let tree: Arc<Value> = Arc::new(kelson_meta::from_json(&record.bytes()).ok()?);
        if record.len() <= TREE_JSON_BYTES_MAX {
            let mut trees = self.trees.lock();
            if trees.len() >= TREES_MAX {
                trees.clear();
            }
            trees.insert(record.revision(), Arc::clone(&tree));
        }
        Some(tree)
    }
}

impl Objects for StoreObjects {
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Bytes> {
        self.store.get(Resource::new(group, resource), namespace, name).map(|r| r.bytes())
    }
    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Bytes> {
        let namespace = Some(namespace).filter(|n| !n.is_empty());
        let view = self.store.list(Resource::new(group, resource), namespace, None, None);
        view.iter().map(|r| r.bytes()).collect()
    }
    fn unreadable(&self, group: &str, resource: &str) -> Option<String> {
        self.store.locked(Resource::new(group, resource)).map(|reason| reason.to_string())
    }
    fn version(&self, group: &str, resource: &str) -> Option<u64> {
        Some(self.store.version(Resource::new(group, resource)))
    }
    fn stamped(&self, group: &str, resource: &str, namespace: &str) -> Vec<(u64, Bytes)> {
        let namespace = Some(namespace).filter(|n| !n.is_empty());
        let view = self.store.list(Resource::new(group, resource), namespace, None, None);
        view.iter().map(|r| (r.revision(), r.bytes())).collect()
    }
    fn tree(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.tree_of(self.store.get(Resource::new(group, resource), namespace, name)?.as_ref())
    }
    fn trees(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        let namespace = Some(namespace).filter(|n| !n.is_empty());
        let view = self.store.list(Resource::new(group, resource), namespace, None, None);
        view.iter().filter_map(|record| self.tree_of(record)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_store::{Body, Fields, Key, Labels, RecordMeta, StoreOptions, Uid, Write};

    fn body(phase: &str) -> (Body, RecordMeta) {
        let json = format!(r#"{{"metadata":{{"name":"a","resourceVersion":""}},"status":{{"phase":"{phase}"}}}}"#);
        let labels: [(&str, &str); 0] = [];
        let meta = RecordMeta {
            uid: Uid::new("u"),
            labels: Labels::new(labels),
            fields: Fields::default(),
            deleting: false,
            expires_at_s: 0,
        };
        (Body::locate(json).unwrap(), meta)
    }

    #[tokio::test]
    async fn a_tree_is_shared_until_its_object_changes() {
        let store = Store::in_memory(StoreOptions::default());
        let namespaces = Resource::new("", "namespaces");
        let key = Key::new(namespaces, "", "a");
        let (first, meta) = body("Active");
        let record = store.commit(Write::create(key.clone(), first, meta)).await.unwrap().record;
        let objects = StoreObjects::new(store.clone());
        let tree = || objects.tree("", "namespaces", "", "a").unwrap();
        assert!(Arc::ptr_eq(&tree(), &tree()));
        assert!(Arc::ptr_eq(&tree(), &objects.trees("", "namespaces", "")[0]));
        let version = objects.version("", "namespaces");
        assert_eq!(objects.version("", "namespaces"), version);
        let (second, meta) = body("Terminating");
        store.commit(Write::update(key, record.revision(), second, meta)).await.unwrap();
        assert_eq!(tree()["status"]["phase"], "Terminating");
        assert_ne!(objects.version("", "namespaces"), version);
        assert!(objects.tree("", "namespaces", "", "b").is_none());
    }
}
