//! The plugins, one small file per concern. Each knows its rules and nothing of the others.
pub mod always;
pub mod certificates;
pub mod classes;
pub mod images;
pub mod limit_ranger;
pub mod namespaces;
pub mod node_restriction;
pub mod node_selector;
pub mod owner_references;
pub mod pod_security;
pub mod priority;
pub mod runtime_class;
pub mod service_account;
pub mod services;
pub mod storage;
pub mod tolerations;

use kelson_auth::Objects;
use serde_json::Value;

/// A stored object as a tree.
pub(crate) fn find(objects: &dyn Objects, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Value> {
    serde_json::from_slice(&objects.get(group, resource, namespace, name)?).ok()
}

/// All stored objects of a resource as trees.
pub(crate) fn all(objects: &dyn Objects, group: &str, resource: &str, namespace: &str) -> Vec<Value> {
    objects.list(group, resource, namespace).iter().filter_map(|b| serde_json::from_slice(b).ok()).collect()
}
