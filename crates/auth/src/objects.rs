//! The interface to stored objects for authentication, authorization and admission. The API server implements it with
//! the store; all calls answer from memory and never block.
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

/// Reads stored objects as canonical JSON.
pub trait Objects: Send + Sync {
    /// Returns one object; `group` is empty for the legacy group, `namespace` for cluster-scoped resources.
    fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Bytes>;
    /// Returns all objects of a resource in one namespace (`""`: in all namespaces, or cluster-scoped).
    fn list(&self, group: &str, resource: &str, namespace: &str) -> Vec<Bytes>;
    /// Returns one object as a tree that all readers share until the object changes: for objects that many requests
    /// read, such as namespaces, accounts and classes.
    fn tree(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        kelson_meta::from_json(&self.get(group, resource, namespace, name)?).ok()
    }
    /// Returns the objects of [`Objects::list`] as trees.
    fn trees(&self, group: &str, resource: &str, namespace: &str) -> Vec<Arc<Value>> {
        self.list(group, resource, namespace).iter().filter_map(|b| kelson_meta::from_json(b).ok()).collect()
    }
    /// Returns why the objects of a resource cannot be read now, although there may be some; `None` when they can be
    /// read.
    fn unreadable(&self, _group: &str, _resource: &str) -> Option<String> {
        None
    }
    /// Returns a number that changes whenever any object of a resource does, to be read before the objects; `None` when
    /// it is not available.
    fn version(&self, _group: &str, _resource: &str) -> Option<u64> {
        None
    }
    /// Returns the objects of [`Objects::list`], each with a number that changes when the object does and that no other
    /// object has, so that a reader can cache decoded objects.
    fn stamped(&self, group: &str, resource: &str, namespace: &str) -> Vec<(u64, Bytes)> {
        let stamp = |bytes: &Bytes| {
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            hasher.finish()
        };
        self.list(group, resource, namespace).into_iter().map(|bytes| (stamp(&bytes), bytes)).collect()
    }
    /// Reads an object with every acknowledged write. The default is `get`, which is right for a store in this process.
    fn get_live(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Bytes> {
        self.get(group, resource, namespace, name)
    }
}

/// A change of a stored object, for indexes that follow the store's log.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The object was created or updated (canonical JSON).
    Put(&'a [u8]),
    /// The object was deleted.
    Delete,
}

/// Decodes a partial view of an object; an object that cannot be decoded counts as absent, and is logged.
pub fn decode<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Option<T> {
    match kelson_meta::from_json(bytes) {
        Ok(v) => Some(v),
        Err(error) => {
            tracing::error!(what, %error, "decoding a stored object failed; ignoring it");
            None
        }
    }
}
