//! All resource slices, indexed by the node where they are usable and by pool.
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kelson_meta::NodeSelector;

use crate::slice::{ResourceSliceView, Selected};

/// The name and the labels of a node.
#[derive(Clone, Copy, Debug)]
pub struct Host<'n> {
    /// The name of the node (`metadata.name`).
    pub name: &'n str,
    /// The labels of the node (`metadata.labels`).
    pub labels: &'n BTreeMap<String, String>,
}

impl Host<'_> {
    /// Returns whether a slice or device with these fields is usable on the node: by name, on all nodes, or by
    /// selector.
    pub(crate) fn suits(&self, name: Option<&str>, everywhere: Option<bool>, selected: Option<&Selected>) -> bool {
        match (name.filter(|n| !n.is_empty()), everywhere, selected) {
            (Some(name), ..) => name == self.name,
            (None, Some(true), _) => true,
            (None, _, Some(Selected { selector, .. })) => self.is_selected(selector),
            (None, _, None) => false,
        }
    }

    /// Returns whether a node selector matches the node.
    pub fn is_selected(&self, selector: &NodeSelector) -> bool {
        selector.matches(self.name, self.labels)
    }
}

/// All resource slices of all drivers.
#[derive(Debug, Default)]
pub struct Inventory {
    slices: HashMap<Box<str>, Arc<ResourceSliceView>>,
    /// The names of the slices of each node.
    on_node: HashMap<Box<str>, Vec<Box<str>>>,
    /// The names of all other slices, and of slices with counters, which are needed on every node of the pool.
    elsewhere: Vec<Box<str>>,
    of_pool: HashMap<(String, String), Vec<Box<str>>>,
}

impl Inventory {
    /// Adds, replaces or removes a slice.
    pub fn put(&mut self, name: &str, slice: Option<Arc<ResourceSliceView>>) {
        if let Some(old) = self.slices.remove(name) {
            let gone = |names: &mut Vec<Box<str>>| names.retain(|n| **n != *name);
            gone(&mut self.elsewhere);
            let pool = pool_key(&old);
            if let Some(names) = self.of_pool.get_mut(&pool) {
                gone(names);
                if names.is_empty() {
                    self.of_pool.remove(&pool);
                }
            }
            if let Some(node) = local(&old)
                && let Some(names) = self.on_node.get_mut(node)
            {
                gone(names);
                if names.is_empty() {
                    self.on_node.remove(node);
                }
            }
        }
        let Some(slice) = slice else { return };
        match local(&slice) {
            Some(node) => self.on_node.entry(node.into()).or_default().push(name.into()),
            None => self.elsewhere.push(name.into()),
        }
        self.of_pool.entry(pool_key(&slice)).or_default().push(name.into());
        self.slices.insert(name.into(), slice);
    }

    /// Returns the slices that may be usable on a node.
    pub(crate) fn near(&self, node: &str) -> impl Iterator<Item = &ResourceSliceView> {
        let own = self.on_node.get(node).into_iter().flatten();
        own.chain(&self.elsewhere).filter_map(|n| self.slices.get(n).map(|s| &**s))
    }

    /// Returns all slices of a pool, of every generation.
    pub(crate) fn of_pool(&self, driver: &str, pool: &str) -> impl Iterator<Item = &ResourceSliceView> {
        let names = self.of_pool.get(&(driver.to_owned(), pool.to_owned())).into_iter().flatten();
        names.filter_map(|n| self.slices.get(n).map(|s| &**s))
    }

    /// Returns all slices in no particular order.
    pub fn all(&self) -> impl Iterator<Item = &Arc<ResourceSliceView>> {
        self.slices.values()
    }
}

fn pool_key(slice: &ResourceSliceView) -> (String, String) {
    (slice.spec.driver.clone(), slice.spec.pool.name.clone())
}

/// Returns the node of a slice for a single node, if the slice has no counters.
fn local(slice: &ResourceSliceView) -> Option<&str> {
    let name = slice.spec.node_name.as_deref().filter(|n| !n.is_empty())?;
    slice.spec.shared_counters.is_empty().then_some(name)
}
