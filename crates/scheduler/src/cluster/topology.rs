//! Node labels that pods are counted by (zones, hostnames …). Each value has a number and each node the number of its
//! value, so that counting and lookup are array accesses.
use std::collections::{BTreeMap, HashMap};

use crate::cluster::node_state::NodeState;

/// The domain of nodes that do not have the label.
pub const NO_DOMAIN: u32 = u32::MAX;

/// The domains of one node label.
#[derive(Debug)]
pub struct Topology {
    key: Box<str>,
    values: HashMap<Box<str>, u32>,
    of_node: Vec<u32>,
}

impl Topology {
    /// Returns the domain of a node by its position.
    pub fn of(&self, node: usize) -> u32 {
        self.of_node[node]
    }
    /// Returns the number of different values.
    pub fn domains(&self) -> usize {
        self.values.len()
    }

    fn number(&mut self, labels: &BTreeMap<String, String>) -> u32 {
        let Some(value) = labels.get(&*self.key) else { return NO_DOMAIN };
        if let Some(n) = self.values.get(value.as_str()) {
            return *n;
        }
        let n = self.values.len() as u32;
        self.values.insert(value.as_str().into(), n);
        n
    }
}

/// The labels in use. Cleared whenever nodes are added or removed, so its size is bounded by the labels that current
/// pods use.
#[derive(Debug, Default)]
pub struct Topologies {
    all: Vec<Topology>,
}

impl Topologies {
    /// Returns the number of a label, assigning one to a new label.
    pub fn number(&mut self, key: &str, nodes: &[NodeState]) -> usize {
        if let Some(i) = self.all.iter().position(|t| *t.key == *key) {
            return i;
        }
        let mut t = Topology { key: key.into(), values: HashMap::new(), of_node: Vec::with_capacity(nodes.len()) };
        for n in nodes {
            let d = t.number(&n.node.labels);
            t.of_node.push(d);
        }
        self.all.push(t);
        self.all.len() - 1
    }

    /// Returns a label by its number.
    pub fn get(&self, number: usize) -> &Topology {
        &self.all[number]
    }

    /// Updates the domains of a node whose labels changed.
    pub fn relabel(&mut self, node: usize, labels: &BTreeMap<String, String>) {
        for t in &mut self.all {
            let d = t.number(labels);
            if let Some(slot) = t.of_node.get_mut(node) {
                *slot = d;
            }
        }
    }

    /// Removes all labels.
    pub fn clear(&mut self) {
        self.all.clear();
    }
}
