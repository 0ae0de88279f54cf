//! A node with the pods on it, and sums over those pods.
use std::sync::Arc;

use crate::view::{Capacity, Node, Pod, PodSpec};

/// A node, its pods, and the sums that plugins read.
#[derive(Clone, Debug)]
pub struct NodeState {
    pub node: Arc<Node>,
    /// Changes with everything that can change a result for this node.
    pub generation: u64,
    /// The sum of the pods' requests.
    pub requested: Capacity,
    /// Sum of CPU requests in millicores, with a default for containers without a request.
    pub assumed_cpu: i64,
    /// Sum of memory requests in bytes, with a default for containers without a request.
    pub assumed_memory: i64,
    pub pods: Vec<Arc<Pod>>,
    /// The number of pods with pod affinity or anti-affinity of any kind.
    pub with_affinity: usize,
}

impl NodeState {
    /// Creates a node without pods.
    pub fn new(node: Arc<Node>, generation: u64) -> Self {
        Self {
            node,
            generation,
            requested: Capacity::default(),
            assumed_cpu: 0,
            assumed_memory: 0,
            pods: Vec::new(),
            with_affinity: 0,
        }
    }

    fn count(&mut self, spec: &PodSpec, sign: i64) {
        self.requested.add(&spec.requests.asked, sign);
        self.assumed_cpu += sign * spec.requests.assumed_cpu;
        self.assumed_memory += sign * spec.requests.assumed_memory;
        if spec.has_pod_affinity() {
            self.with_affinity = self.with_affinity.saturating_add_signed(sign as isize);
        }
    }

    /// Adds a pod.
    pub fn add(&mut self, pod: Arc<Pod>) {
        self.count(&pod.spec, 1);
        self.pods.push(pod);
    }

    /// Removes a pod.
    pub fn remove(&mut self, uid: &str) -> Option<Arc<Pod>> {
        let i = self.pods.iter().position(|p| *p.uid == *uid)?;
        let pod = self.pods.swap_remove(i);
        self.count(&pod.spec, -1);
        Some(pod)
    }
}
