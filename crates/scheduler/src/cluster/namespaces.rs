//! The labels of namespaces, for pod affinity terms that select namespaces by them.
use std::collections::{BTreeMap, HashMap};

use kelson_meta::LabelMap;

use crate::view::Namespace;

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// Labels by namespace.
#[derive(Debug, Default)]
pub struct Namespaces {
    labels: HashMap<Box<str>, LabelMap>,
    epoch: u64,
}

impl Namespaces {
    /// Returns the labels of a namespace; empty when it is unknown.
    pub fn labels(&self, name: &str) -> &BTreeMap<String, String> {
        self.labels.get(name).map_or(&NO_LABELS, |labels| labels)
    }
    /// Returns a number that changes with the labels of any namespace.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
    /// Adds or updates a namespace.
    pub fn put(&mut self, ns: &Namespace) {
        let labels = &ns.metadata.labels;
        if self.labels.get(ns.metadata.name.as_str()) != Some(labels) {
            self.labels.insert(ns.metadata.name.as_str().into(), labels.clone());
            self.epoch += 1;
        }
    }
    /// Removes a namespace.
    pub fn remove(&mut self, name: &str) {
        if self.labels.remove(name).is_some() {
            self.epoch += 1;
        }
    }
}
