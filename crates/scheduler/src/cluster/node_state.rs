//! One node with the pods on it, and sums over them.
use std::sync::Arc;

use crate::view::{Capacity, Node, Pod, PodSpec};

/// One node and what is on it.
#[derive(Clone, Debug)]
pub struct NodeState {
    pub node: Arc<Node>,
    /// Changes with everything that may change a verdict on this node.
    pub generation: u64,
    /// Sum of the pods' requests.
    pub requested: Capacity,
    /// Sum of CPU, with assumed amounts.
    pub assumed_cpu: i64,
    /// Sum of memory, with assumed amounts.
    pub assumed_memory: i64,
    pub pods: Vec<Arc<Pod>>,
    /// How many of them have pod affinity of any kind.
    pub with_affinity: usize,
}

impl NodeState {
    /// A node without pods.
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

    /// Puts a pod on it.
    pub fn add(&mut self, pod: Arc<Pod>) {
        self.count(&pod.spec, 1);
        self.pods.push(pod);
    }

    /// Takes a pod off it.
    pub fn remove(&mut self, uid: &str) -> Option<Arc<Pod>> {
        let i = self.pods.iter().position(|p| *p.uid == *uid)?;
        let pod = self.pods.swap_remove(i);
        self.count(&pod.spec, -1);
        Some(pod)
    }
}
