//! The pools of a node: the slices of the newest generation, whether they are complete, and whether they are
//! consistent.
use std::collections::{BTreeMap, HashSet};

use crate::inventory::{Host, Inventory};
use crate::slice::{Counter, ResourceSliceView};

/// The counters of a set by name.
pub(crate) type Counters = BTreeMap<String, Counter>;

/// One pool of a driver, as seen from one node.
#[derive(Debug)]
pub(crate) struct Pool<'s> {
    pub driver: &'s str,
    pub name: &'s str,
    pub state: PoolState,
    /// The slices with devices that are usable on this node, by name.
    pub slices: Vec<&'s ResourceSliceView>,
    /// The other slices with devices, if counters must be computed over the whole pool.
    pub others: Vec<&'s ResourceSliceView>,
    pub counters: BTreeMap<&'s str, &'s Counters>,
}

/// Whether devices of a pool can be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolState {
    /// All slices are present and consistent.
    Ready,
    /// The driver has not published all slices yet.
    Incomplete,
    /// The slices contradict each other.
    Invalid,
}

/// Returns the pools of a node in the order in which devices are tried: by name, and pools with devices that need
/// preparation last.
pub(crate) fn gather<'s>(inventory: &'s Inventory, host: Host<'_>) -> Vec<Pool<'s>> {
    let mut found: BTreeMap<(&str, &str), Vec<&ResourceSliceView>> = BTreeMap::new();
    for slice in inventory.near(host.name).filter(|s| is_relevant(s, host)) {
        let spec = &slice.spec;
        let slices = found.entry((&spec.driver, &spec.pool.name)).or_default();
        match slices.first().map(|first| first.spec.pool.generation) {
            Some(known) if spec.pool.generation < known => continue,
            Some(known) if spec.pool.generation > known => slices.clear(),
            _ => {}
        }
        slices.push(slice);
    }
    let pools = found.into_iter().filter_map(|((driver, name), slices)| pool(inventory, driver, name, slices));
    let (later, mut ready): (Vec<_>, Vec<_>) = pools.partition(Pool::must_be_prepared);
    ready.extend(later);
    ready
}

fn is_relevant(slice: &ResourceSliceView, host: Host<'_>) -> bool {
    let spec = &slice.spec;
    if !spec.shared_counters.is_empty() {
        return true;
    }
    if spec.per_device_node_selection == Some(true) {
        let mut devices = spec.devices.iter();
        return devices.any(|d| host.suits(d.node_name.as_deref(), d.all_nodes, d.node_selector.as_ref()));
    }
    host.suits(spec.node_name.as_deref(), spec.all_nodes, spec.node_selector.as_ref())
}

/// Returns a pool, or `None` if the node's slices are of an outdated generation.
fn pool<'s>(
    inventory: &'s Inventory,
    driver: &'s str,
    name: &'s str,
    mut near: Vec<&'s ResourceSliceView>,
) -> Option<Pool<'s>> {
    let said = &near.first()?.spec.pool;
    let (generation, count) = (said.generation, usize::try_from(said.resource_slice_count).unwrap_or(0));
    let mut out = Pool {
        driver,
        name,
        state: PoolState::Ready,
        slices: Vec::new(),
        others: Vec::new(),
        counters: BTreeMap::new(),
    };
    let mut rest = Vec::new();
    if near.len() != count {
        for slice in inventory.of_pool(driver, name) {
            if slice.spec.pool.generation > generation {
                return None;
            }
            if slice.spec.pool.generation == generation && !near.iter().any(|s| std::ptr::eq(*s, slice)) {
                rest.push(slice);
            }
        }
        if near.len() + rest.len() != count {
            out.state = PoolState::Incomplete;
            return Some(out);
        }
    }
    near.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let (counters, slices): (Vec<_>, Vec<_>) = near.into_iter().partition(|s| !s.spec.shared_counters.is_empty());
    out.slices = slices;
    out.others = rest;
    let sets = counters.iter().flat_map(|s| &s.spec.shared_counters);
    let agreed = sets.into_iter().all(|set| out.counters.insert(&set.name, &set.counters).is_none());
    if !agreed || !out.names_differ() || !out.counters_exist() {
        out.state = PoolState::Invalid;
    }
    Some(out)
}

impl Pool<'_> {
    fn names_differ(&self) -> bool {
        let mut names = HashSet::new();
        self.slices.iter().flat_map(|s| &s.spec.devices).all(|d| names.insert(d.name.as_str()))
    }

    /// Returns whether all counters that devices consume exist.
    fn counters_exist(&self) -> bool {
        let uses =
            self.slices.iter().chain(&self.others).flat_map(|s| &s.spec.devices).flat_map(|d| &d.consumes_counters);
        uses.into_iter().all(|u| {
            let set = self.counters.get(u.counter_set.as_str());
            set.is_some_and(|set| u.counters.keys().all(|name| set.contains_key(name)))
        })
    }

    fn must_be_prepared(&self) -> bool {
        self.slices.iter().flat_map(|s| &s.spec.devices).any(|d| !d.binding_conditions.is_empty())
    }
}
