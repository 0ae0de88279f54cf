//! The window to stored objects that authentication, authorization and admission look through. The API server implements
//! it over the store; both calls answer from memory and never wait.
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

/// Reads of stored objects, as their canonical JSON.
pub trait Objects: Send + Sync {
    /// One object; `group` is empty for the legacy group, `namespace` for cluster-scoped resources.
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Bytes>;
    /// All objects of a resource in one namespace (`""`: in all namespaces, or cluster-scoped).
    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Bytes>;
    /// One object as a tree that all readers share until the object changes: meant for what many requests look at, such
    /// as namespaces, accounts and classes.
    fn tree(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        serde_json::from_slice(&self.get(group, resource, namespace, name)?).ok()
    }
    /// What [`Objects::list`] gives, as trees.
    fn trees(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        self.list(group, resource, namespace).iter().filter_map(|b| serde_json::from_slice(b).ok()).collect()
    }
    /// Why the objects of a resource cannot be read now, although there may be some; `None` when they can be.
    fn unreadable(&self, _group: &str, _resource: &str) -> Option<String> {
        None
    }
    /// A number that changes whenever any object of a resource does, to be asked before the objects are; `None` where nobody
    /// counts.
    fn version(&self, _group: &str, _resource: &str) -> Option<u64> {
        None
    }
    /// What [`Objects::list`] gives, each with a number that changes when the object does and that no other object has, so
    /// that a reader can tell what it has decoded already.
    fn stamped(&self, group: &str, resource: &str, namespace: &str) -> Vec<(u64, Bytes)> {
        let stamp = |bytes: &Bytes| {
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            hasher.finish()
        };
        self.list(group, resource, namespace).into_iter().map(|bytes| (stamp(&bytes), bytes)).collect()
    }
    /// A read that must reflect every acknowledged write. The default is `get`, right for a store in this process.
    fn get_live(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Bytes> {
        self.get(group, resource, namespace, name)
    }
}

/// One stored change, fed to the indexes that follow the store's log.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The object is now this (canonical JSON).
    Put(&'a [u8]),
    /// The object is gone.
    Delete,
}

/// Decodes an object's slim view; a stored object that does not decode is treated as absent, and logged.
pub fn decode<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Option<T> {
    match serde_json::from_slice(bytes) {
        Ok(v) => Some(v),
        Err(error) => {
            tracing::error!(what, %error, "decoding a stored object failed; ignoring it");
            None
        }
    }
}
