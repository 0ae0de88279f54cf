//! Node labels that pods are gathered over (zones, hostnames …): each value has a number, each node the number of its
//! value, so that counting and looking up are array accesses.
use std::collections::{BTreeMap, HashMap};

use crate::cluster::node_state::NodeState;

/// The domain of nodes without the label.
pub const NO_DOMAIN: u32 = u32::MAX;

/// What is known of the domains of one node label.
#[derive(Debug)]
pub struct Topology {
    key: Box<str>,
    values: HashMap<Box<str>, u32>,
    of_node: Vec<u32>,
}

impl Topology {
    /// The domain of a node by its position.
    pub fn of(&self, node: usize) -> u32 {
        self.of_node[node]
    }
    /// How many values have been seen.
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

/// The labels in use; cleared whenever nodes come or go, so bounded by what the present pods name.
#[derive(Debug, Default)]
pub struct Topologies {
    all: Vec<Topology>,
}

impl Topologies {
    /// The number of a label, learning it when it is new.
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

    /// One label by its number.
    pub fn get(&self, number: usize) -> &Topology {
        &self.all[number]
    }

    /// A node's labels changed.
    pub fn relabel(&mut self, node: usize, labels: &BTreeMap<String, String>) {
        for t in &mut self.all {
            let d = t.number(labels);
            if let Some(slot) = t.of_node.get_mut(node) {
                *slot = d;
            }
        }
    }

    /// Forgets all of it.
    pub fn clear(&mut self) {
        self.all.clear();
    }
}
