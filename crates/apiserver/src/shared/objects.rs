//! The store as authentication, authorization and admission see it.
use bytes::Bytes;
use kelson_auth::Objects;
use kelson_store::{Resource, Store};

/// Reads straight from the store's current state.
pub struct StoreObjects {
    store: Store,
}

impl StoreObjects {
    /// Over a store.
    pub fn new(store: Store) -> Self {
        Self { store }
    }
}

impl Objects for StoreObjects {
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Bytes> {
        self.store.get(Resource::new(group, resource), namespace, name).map(|r| r.bytes().clone())
    }
    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Bytes> {
        let namespace = Some(namespace).filter(|n| !n.is_empty());
        let view = self.store.list(Resource::new(group, resource), namespace, None, None);
        view.iter().map(|r| r.bytes().clone()).collect()
    }
}
