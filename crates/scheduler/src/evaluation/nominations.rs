//! Promises: pods for which others make room on a node, and whose room must be kept until they come.
use std::collections::HashMap;
use std::sync::Arc;

use crate::view::Pod;

/// Pods that were promised a node, because others make room for them there.
#[derive(Debug, Default)]
pub struct Nominations {
    by_node: HashMap<Box<str>, Vec<Arc<Pod>>>,
    node_of: HashMap<Arc<str>, Box<str>>,
}

impl Nominations {
    /// Promises a node, in place of an earlier promise.
    pub fn put(&mut self, pod: Arc<Pod>, node: &str) {
        self.remove(&pod.uid);
        self.node_of.insert(Arc::clone(&pod.uid), node.into());
        self.by_node.entry(node.into()).or_default().push(pod);
    }
    /// Takes the promise back.
    pub fn remove(&mut self, uid: &str) {
        let Some(node) = self.node_of.remove(uid) else { return };
        if let Some(pods) = self.by_node.get_mut(&node) {
            pods.retain(|p| *p.uid != *uid);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }
    /// The node a pod was promised.
    pub fn node_of(&self, uid: &str) -> Option<&str> {
        self.node_of.get(uid).map(|n| &**n)
    }
    /// Who was promised a node.
    pub fn on(&self, node: &str) -> &[Arc<Pod>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }
}

/// Whether room promised to one pod counts as taken for another.
pub fn takes_precedence(promised: &Pod, pod: &Pod) -> bool {
    promised.uid != pod.uid && promised.spec.priority >= pod.spec.priority
}
