//! Nominated pods: preemption frees room for them on a node, which must be kept until they are bound.
use std::collections::HashMap;
use std::sync::Arc;

use crate::view::Pod;

/// Pods that are nominated to a node because preemption frees room for them there.
#[derive(Debug, Default)]
pub struct Nominations {
    by_node: HashMap<Box<str>, Vec<Arc<Pod>>>,
    node_of: HashMap<Arc<str>, Box<str>>,
}

impl Nominations {
    /// Nominates a pod to a node, replacing an earlier nomination.
    pub fn put(&mut self, pod: Arc<Pod>, node: &str) {
        self.remove(&pod.uid);
        self.node_of.insert(Arc::clone(&pod.uid), node.into());
        self.by_node.entry(node.into()).or_default().push(pod);
    }
    /// Removes the nomination of a pod.
    pub fn remove(&mut self, uid: &str) {
        let Some(node) = self.node_of.remove(uid) else { return };
        if let Some(pods) = self.by_node.get_mut(&node) {
            pods.retain(|p| *p.uid != *uid);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }
    /// Returns the node a pod is nominated to.
    pub fn node_of(&self, uid: &str) -> Option<&str> {
        self.node_of.get(uid).map(|n| &**n)
    }
    /// Returns the pods nominated to a node.
    pub fn on(&self, node: &str) -> &[Arc<Pod>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }
}

/// Reports whether room of the nominated pod counts as used for the other pod.
pub fn takes_precedence(promised: &Pod, pod: &Pod) -> bool {
    promised.uid != pod.uid && promised.spec.priority >= pod.spec.priority
}
