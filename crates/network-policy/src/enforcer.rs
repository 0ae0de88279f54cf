//! Updates the tables of a node to what the cluster's policies require, change by change. The cost of a change depends
//! on what it affects: a pod is compared with each distinct selector once, and only the pods of this node that a policy
//! selects get new chains. Pure; [`crate::sync`] watches and applies.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use kelson_meta::{LabelMap, ObjectKey};
use kelson_net::table::{Fragment, Item, Table};
use kelson_net::{Family, Protocol};

use crate::cluster::Cluster;
use crate::pod::PodFacts;
use crate::policy::{Direction, PeerSelector, Peers, Policy, PortMatch};
use crate::render;

/// A set whose elements are the pods of a selector.
#[derive(Clone, Debug)]
struct Selection {
    selector: Arc<PeerSelector>,
    /// The port in elements of address and port; `None` for a set of addresses.
    port: Option<(Protocol, String)>,
    /// The number of rules of policies that use the set.
    users: usize,
}

/// The owner of an item in a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A policy: its counters, sets and blocks.
    Policy(ObjectKey),
    /// A pod of the cluster: its elements in sets.
    Pod(ObjectKey),
    /// A pod of this node: its chains.
    Local(ObjectKey),
}

/// Computes the tables of a node from the cluster's pods, namespaces and policies.
///
/// The `set_*` and `remove_*` methods apply one change each and update the claims on table items; [`Enforcer::tables`]
/// returns the tables, whose transactions the caller applies. [`Enforcer::assign`] adds the addresses of a starting pod
/// before its status has them, so that its rules are in force before it runs. No clock, no I/O.
#[derive(Debug)]
pub struct Enforcer {
    node: String,
    cluster: Cluster,
    /// Addresses of this node's pods before their status has them.
    assigned: HashMap<ObjectKey, Vec<IpAddr>>,
    selections: HashMap<Arc<str>, Selection>,
    tables: Vec<(Family, Table<Owner>)>,
}

impl Enforcer {
    /// Creates an enforcer for the pods of `node`, with a table for each family; `name` returns the name of a family's
    /// table.
    pub fn new(node: &str, families: &[Family], name: impl Fn(Family) -> String) -> Self {
        let tables = families.iter().map(|f| (*f, Table::new(name(*f), render::base(*f)))).collect();
        Self {
            node: node.to_owned(),
            cluster: Cluster::default(),
            assigned: HashMap::new(),
            selections: HashMap::new(),
            tables,
        }
    }

    /// Returns the state of the cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the tables, by family.
    pub fn tables(&mut self) -> impl Iterator<Item = (Family, &mut Table<Owner>)> {
        self.tables.iter_mut().map(|(family, table)| (*family, table))
    }

    /// Adds or updates a pod.
    pub fn set_pod(&mut self, mut pod: PodFacts) {
        let key = pod.key();
        if let Some(assigned) = self.assigned.get(&key) {
            if pod.node != self.node || assigned.iter().all(|ip| pod.ips.contains(ip)) {
                self.assigned.remove(&key);
            } else {
                // The status may be that of an earlier sandbox: until it is updated, policies apply to both addresses.
                pod.ips.extend(assigned.iter().filter(|ip| !pod.ips.contains(ip)).copied().collect::<Vec<_>>());
            }
        }
        if self.cluster.pod(&key) == Some(&pod) {
            return;
        }
        self.cluster.set_pod(pod);
        self.refresh_pod(&key);
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, key: &ObjectKey) {
        self.assigned.remove(key);
        if self.cluster.remove_pod(key).is_some() {
            self.refresh_pod(key);
        }
    }

    /// Stores the addresses that a pod of this node just got, so that its rules are in force before it runs.
    pub fn assign(&mut self, mut pod: PodFacts, ips: Vec<IpAddr>) {
        self.assigned.insert(pod.key(), ips);
        pod.node.clone_from(&self.node);
        self.set_pod(pod);
    }

    /// Sets the labels of a namespace.
    pub fn set_namespace(&mut self, name: &str, labels: LabelMap) {
        if self.cluster.set_namespace(name, labels) {
            self.refresh_namespace(name);
        }
    }

    /// Removes a namespace.
    pub fn remove_namespace(&mut self, name: &str) {
        if self.cluster.remove_namespace(name) {
            self.refresh_namespace(name);
        }
    }

    /// Adds or updates a policy.
    pub fn set_policy(&mut self, policy: Policy) {
        let policy = Arc::new(policy);
        let before = self.cluster.set_policy(Arc::clone(&policy));
        // New sets first: one that both versions use is not emptied in between.
        self.use_sets(&policy, true);
        if let Some(before) = &before {
            self.use_sets(before, false);
        }
        let owner = Owner::Policy(policy.key.clone());
        for (family, table) in &mut self.tables {
            table.replace(&owner, policy_items(*family, &policy));
        }
        self.refresh_selected(&policy, before.as_deref());
    }

    /// Removes a policy.
    pub fn remove_policy(&mut self, key: &ObjectKey) {
        let Some(policy) = self.cluster.remove_policy(key) else { return };
        self.use_sets(&policy, false);
        for (_, table) in &mut self.tables {
            table.replace(&Owner::Policy(key.clone()), Fragment::new());
        }
        self.refresh_selected(&policy, None);
    }

    /// Adds or removes a policy as a user of its sets; a set gets its elements with its first user and loses them with
    /// its last.
    fn use_sets(&mut self, policy: &Policy, used: bool) {
        for (set, selector, port) in sets_of(policy) {
            let selection =
                self.selections.entry(set.clone()).or_insert_with(|| Selection { selector, port, users: 0 });
            let before = selection.users;
            selection.users = if used { before + 1 } else { before.saturating_sub(1) };
            let changed = (before == 0) != (selection.users == 0);
            if !changed {
                continue;
            }
            let selection = selection.clone();
            if selection.users == 0 {
                self.selections.remove(&set);
            }
            for pod in self.cluster.pods().filter(|pod| self.cluster.selects(&selection.selector, pod)) {
                let owner = Owner::Pod(pod.key());
                for (family, table) in &mut self.tables {
                    for key in members(*family, pod, selection.port.as_ref()) {
                        table.set(&owner, Item::Element(Arc::clone(&set), key), used);
                    }
                }
            }
        }
    }

    /// Updates the chains of this node's pods that the old or the new version of a policy selects.
    fn refresh_selected(&mut self, policy: &Policy, before: Option<&Policy>) {
        let selected = |pod: &&PodFacts| policy.selects(pod) || before.is_some_and(|b| b.selects(pod));
        let pods: Vec<ObjectKey> = self
            .cluster
            .pods_in(&policy.key.namespace)
            .filter(|pod| pod.node == self.node)
            .filter(selected)
            .map(PodFacts::key)
            .collect();
        for key in &pods {
            self.refresh_chains(key);
        }
    }

    fn refresh_namespace(&mut self, name: &str) {
        let pods: Vec<ObjectKey> = self.cluster.pods_in(name).map(PodFacts::key).collect();
        for key in &pods {
            self.refresh_sets(key);
        }
    }

    fn refresh_pod(&mut self, key: &ObjectKey) {
        self.refresh_sets(key);
        self.refresh_chains(key);
    }

    /// Updates the elements of a pod in all sets.
    fn refresh_sets(&mut self, key: &ObjectKey) {
        let pod = self.cluster.pod(key);
        let owner = Owner::Pod(key.clone());
        for (family, table) in &mut self.tables {
            let mut fragment = Fragment::new();
            if let Some(pod) = pod.filter(|pod| !pod.ips.is_empty()) {
                for (set, selection) in &self.selections {
                    if self.cluster.selects(&selection.selector, pod) {
                        let keys = members(*family, pod, selection.port.as_ref());
                        fragment.extend(keys.map(|key| (Item::Element(Arc::clone(set), key), Arc::from(""))));
                    }
                }
            }
            table.replace(&owner, fragment);
        }
    }

    /// Updates the chains of a pod of this node, and the elements that refer to them.
    fn refresh_chains(&mut self, key: &ObjectKey) {
        let pod = self.cluster.pod(key).filter(|pod| pod.node == self.node);
        let owner = Owner::Local(key.clone());
        let policies: Vec<&Arc<Policy>> = pod.map(|pod| self.cluster.policies_of(pod).collect()).unwrap_or_default();
        for (family, table) in &mut self.tables {
            let fragment = pod.map(|pod| pod_items(*family, pod, &policies)).unwrap_or_default();
            table.replace(&owner, fragment);
        }
    }
}

/// Returns the sets that a policy's rules use: name, selector and, for pairs of address and port, the port.
fn sets_of(policy: &Policy) -> Vec<(Arc<str>, Arc<PeerSelector>, Option<(Protocol, String)>)> {
    let mut sets = HashMap::new();
    for direction in Direction::ALL {
        for rule in policy.rules(direction).unwrap_or_default() {
            let every = || Arc::new(PeerSelector::every_pod());
            let (selectors, has_blocks) = match &rule.peers {
                Peers::Any => (Vec::new(), true),
                Peers::Listed { selectors, blocks } => (selectors.clone(), !blocks.is_empty()),
            };
            let named = rule.ports.iter().filter_map(|p| match &p.port {
                PortMatch::Named(name) if direction == Direction::Egress => Some((p.protocol, name.clone())),
                _ => None,
            });
            for (protocol, name) in named {
                for selector in selectors.iter().cloned().chain(has_blocks.then(every)) {
                    let set = render::ports_set(&selector, protocol, &name);
                    sets.insert(set, (selector, Some((protocol, name.clone()))));
                }
            }
            for selector in selectors {
                sets.insert(render::peers_set(&selector), (selector, None));
            }
        }
    }
    sets.into_iter().map(|(set, (selector, port))| (Arc::from(set), selector, port)).collect()
}

/// Returns the elements of a pod in a set.
fn members<'a>(
    family: Family,
    pod: &'a PodFacts,
    port: Option<&'a (Protocol, String)>,
) -> impl Iterator<Item = String> + 'a {
    let numbers: BTreeSet<Option<u16>> = match port {
        None => BTreeSet::from([None]),
        Some((protocol, name)) => {
            let own = pod.ports.iter().filter(|p| p.protocol == *protocol && p.name == *name);
            own.map(|p| Some(p.number)).collect()
        }
    };
    let ips = pod.ips.iter().filter(move |ip| Family::of(ip) == family);
    ips.flat_map(move |ip| {
        numbers.clone().into_iter().map(move |number| match number {
            None => ip.to_string(),
            Some(number) => format!("{ip} . {number}"),
        })
    })
}

/// Returns the items of a policy in a table: its counters, and the sets that its rules use.
fn policy_items(family: Family, policy: &Policy) -> Fragment {
    let (mut items, addr) = (Fragment::new(), family.address_type());
    for (set, _, port) in sets_of(policy) {
        let spec = if port.is_some() { format!("type {addr} . inet_service;") } else { format!("type {addr};") };
        items.insert(Item::Set(set.to_string()), Arc::from(spec));
    }
    for direction in Direction::ALL {
        let Some(rules) = policy.rules(direction) else { continue };
        for allowed in [true, false] {
            items.insert(Item::Counter(render::counter(&policy.key, direction, allowed)), Arc::from(""));
        }
        for rule in rules {
            let ranges = rule.peers.ranges(family);
            if ranges.is_empty() {
                continue;
            }
            let set: Arc<str> = Arc::from(render::blocks_set(family, &ranges));
            items.insert(Item::Set(set.to_string()), Arc::from(format!("type {addr}; flags interval;")));
            items.extend(ranges.elements(family).map(|e| (Item::Element(Arc::clone(&set), e), Arc::from(""))));
        }
    }
    items
}

/// Returns the items of a pod of this node in a table: for each direction in which it is isolated its chain, and the
/// element that refers to it.
fn pod_items(family: Family, pod: &PodFacts, policies: &[&Arc<Policy>]) -> Fragment {
    let mut items = Fragment::new();
    let ips: Vec<&IpAddr> = pod.ips.iter().filter(|ip| Family::of(ip) == family).collect();
    for (direction, map) in [(Direction::Ingress, render::INGRESS_MAP), (Direction::Egress, render::EGRESS_MAP)] {
        let applying: Vec<&Policy> = policies.iter().filter(|p| p.rules(direction).is_some()).map(|p| &***p).collect();
        if applying.is_empty() || ips.is_empty() {
            continue;
        }
        let (name, rules) = render::chain(family, direction, &applying, pod);
        for ip in &ips {
            items.insert(Item::Element(Arc::from(map), ip.to_string()), Arc::from(format!("jump {name}")));
            items.insert(Item::Element(Arc::from(render::ISOLATED_SET), ip.to_string()), Arc::from(""));
            items.insert(Item::Element(Arc::from(render::SELF_SET), format!("{ip} . {ip}")), Arc::from(""));
        }
        items.insert(Item::Chain(name), Arc::from(rules));
    }
    items
}
