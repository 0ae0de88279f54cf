//! The scheduler's view of the cluster: nodes with the pods on them (bound, or assumed to be bound soon), updated
//! change by change. Every change of a node gives it a new generation, which marks results computed from older
//! generations as stale. Adding or removing a node changes the structure, which makes all results stale.
mod capacity;
pub mod claim_users;
pub mod devices;
pub mod extended;
pub mod namespaces;
pub mod node_state;
pub mod storage;
pub mod topology;
pub mod workloads;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use self::claim_users::ClaimUsers;
use self::devices::Devices;
pub use self::namespaces::Namespaces;
pub use self::node_state::NodeState;
use self::storage::Storage;
use self::topology::Topologies;
use self::workloads::Workloads;
use crate::view::{Node, Pod, PodSpec};

/// The node of a known pod.
#[derive(Debug)]
struct Placed {
    node: Box<str>,
    priority: i32,
    /// `None` for a pod the API server has shown; for an assumed pod, the time at which its binding succeeded.
    assumed: Option<Option<Instant>>,
}

/// The change of a placed pod by an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodUpdate {
    /// The pod was unknown, or was only assumed.
    Placed,
    /// Its labels or requests changed.
    Changed,
    /// Nothing that scheduling depends on.
    Nothing,
}

/// All nodes, placed pods, and the objects that scheduling decisions read.
///
/// The scheduler's informers update it change by change, and each node carries a generation that results are cached by.
/// A pod is *assumed* on a node from the decision until the API server shows the binding; an assumption that is not
/// confirmed in time expires. Everything here is in memory and synchronous.
#[derive(Debug, Default)]
pub struct Cluster {
    nodes: Vec<NodeState>,
    by_name: HashMap<Box<str>, usize>,
    placed: HashMap<Arc<str>, Placed>,
    /// Assumed pods in the order their bindings succeeded; they are removed when their time has passed.
    unconfirmed: VecDeque<(Instant, Arc<str>)>,
    /// Pods on nodes that are not known yet or were removed.
    homeless: HashMap<Box<str>, Vec<Arc<Pod>>>,
    order: Vec<u32>,
    generation: u64,
    structure: u64,
    with_affinity: usize,
    /// The number of placed pods with each priority.
    priorities: BTreeMap<i32, usize>,
    images: HashMap<Box<str>, ImageSummary>,
    images_epoch: u64,
    namespaces: Namespaces,
    /// Claims, volumes and storage classes.
    pub storage: Storage,
    /// ResourceClaims, ResourceSlices and DeviceClasses.
    pub devices: Devices,
    /// Placed pods by the claims they use.
    pub claim_users: ClaimUsers,
    /// Selectors of services and controllers.
    pub workloads: Workloads,
    topologies: Topologies,
}

/// The number of nodes with an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageSummary {
    /// The size in bytes.
    pub size: i64,
    /// The number of nodes that have it.
    pub nodes: i64,
}

impl Cluster {
    /// Returns the nodes. Positions are stable while [`structure`](Self::structure) is.
    pub fn nodes(&self) -> &[NodeState] {
        &self.nodes
    }
    /// Returns the position of a node.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }
    /// Returns the order in which nodes are visited: zones alternate.
    pub fn order(&self) -> &[u32] {
        &self.order
    }
    /// Returns a number that changes when nodes are added or removed.
    pub fn structure(&self) -> u64 {
        self.structure
    }
    /// Reports whether any placed pod has pod affinity.
    pub fn any_affinity(&self) -> bool {
        self.with_affinity > 0
    }
    /// Returns the lowest priority of all placed pods.
    pub fn lowest_priority(&self) -> Option<i32> {
        self.priorities.first_key_value().map(|(p, _)| *p)
    }
    /// Returns a number that changes when an image is on more or fewer nodes.
    pub fn images_epoch(&self) -> u64 {
        self.images_epoch
    }
    /// Returns how many nodes have an image.
    pub fn image(&self, name: &str) -> Option<ImageSummary> {
        self.images.get(name).copied()
    }
    /// Returns the node labels that pods are counted by.
    pub fn topologies(&self) -> &Topologies {
        &self.topologies
    }
    pub fn namespaces(&mut self) -> &mut Namespaces {
        &mut self.namespaces
    }
    /// Returns all namespaces with their labels.
    pub fn known_namespaces(&self) -> &Namespaces {
        &self.namespaces
    }
    /// Returns the spec of a placed pod.
    pub fn spec_of(&self, uid: &str) -> Option<Arc<PodSpec>> {
        let node = self.position(&self.placed.get(uid)?.node)?;
        self.nodes[node].pods.iter().find(|p| *p.uid == *uid).map(|p| Arc::clone(&p.spec))
    }
    /// Returns a number that changes with the labels of any namespace.
    pub fn namespaces_epoch(&self) -> u64 {
        self.namespaces.epoch()
    }
    /// Borrows the parts that counting over topologies needs, at the same time.
    pub fn parts(&mut self) -> (&[NodeState], &mut Topologies, &Namespaces) {
        (&self.nodes, &mut self.topologies, &self.namespaces)
    }
    /// Returns the node that a pod is on, or is assumed on.
    pub fn node_of(&self, uid: &str) -> Option<&str> {
        self.placed.get(uid).map(|p| &*p.node)
    }

    /// Returns the number of nodes, of placed pods, and of those pods that are only assumed.
    pub fn sizes(&self) -> (usize, usize, usize) {
        let assumed = self.placed.values().filter(|p| p.assumed.is_some()).count();
        (self.nodes.len(), self.placed.len(), assumed)
    }

    fn touch(&mut self, i: usize) {
        self.generation += 1;
        self.nodes[i].generation = self.generation;
    }

    /// Adds or updates a node.
    pub fn put_node(&mut self, node: Arc<Node>) {
        if let Some(i) = self.position(&node.name) {
            let old = std::mem::replace(&mut self.nodes[i].node, Arc::clone(&node));
            if old.same_for_scheduling(&node) {
                return;
            }
            self.count_images(&old, -1);
            self.count_images(&node, 1);
            self.touch(i);
            if old.labels != node.labels {
                self.topologies.relabel(i, &node.labels);
            }
            if old.zone() != node.zone() {
                self.reorder();
            }
            return;
        }
        self.count_images(&node, 1);
        self.generation += 1;
        let mut state = NodeState::new(Arc::clone(&node), self.generation);
        for pod in self.homeless.remove(&node.name).unwrap_or_default() {
            state.add(pod);
        }
        self.with_affinity += state.with_affinity;
        self.by_name.insert(node.name.clone(), self.nodes.len());
        self.nodes.push(state);
        self.restructure();
    }

    /// Removes a node. Its pods stay known until they are removed.
    pub fn remove_node(&mut self, name: &str) {
        let Some(i) = self.by_name.remove(name) else { return };
        let state = self.nodes.swap_remove(i);
        if let Some(moved) = self.nodes.get(i) {
            self.by_name.insert(moved.node.name.clone(), i);
        }
        self.with_affinity -= state.with_affinity;
        self.count_images(&state.node, -1);
        if !state.pods.is_empty() {
            self.homeless.insert(name.into(), state.pods);
        }
        self.restructure();
    }

    fn restructure(&mut self) {
        self.structure += 1;
        self.images_epoch += 1;
        self.topologies.clear();
        // The order is computed when it is next read, so that adding a thousand nodes computes it once.
        self.order.clear();
    }

    /// Updates the visiting order. Must be called before [`order`](Self::order).
    pub fn settle(&mut self) {
        if self.order.len() != self.nodes.len() {
            self.reorder();
        }
    }

    fn reorder(&mut self) {
        let mut zones: BTreeMap<(&str, &str), Vec<u32>> = BTreeMap::new();
        let mut sorted: Vec<u32> = (0..self.nodes.len() as u32).collect();
        sorted.sort_unstable_by(|a, b| self.nodes[*a as usize].node.name.cmp(&self.nodes[*b as usize].node.name));
        for i in sorted {
            zones.entry(self.nodes[i as usize].node.zone()).or_default().push(i);
        }
        let longest = zones.values().map(Vec::len).max().unwrap_or(0);
        let order = (0..longest).flat_map(|k| zones.values().filter_map(move |z| z.get(k).copied())).collect();
        self.order = order;
    }

    fn count_images(&mut self, node: &Node, sign: i64) {
        if !node.images.is_empty() {
            self.images_epoch += 1;
        }
        for (name, size) in &node.images {
            let s = self.images.entry(name.clone()).or_default();
            s.nodes += sign;
            s.size = *size;
            if s.nodes <= 0 {
                self.images.remove(name);
            }
        }
    }

    fn place(&mut self, pod: Arc<Pod>, assumed: Option<Option<Instant>>) {
        let (node, priority) = (pod.node_name.clone(), pod.spec.priority);
        self.placed.insert(Arc::clone(&pod.uid), Placed { node: node.clone(), priority, assumed });
        *self.priorities.entry(priority).or_default() += 1;
        self.claim_users.add(&pod);
        match self.position(&node) {
            Some(i) => {
                self.with_affinity += usize::from(pod.spec.has_pod_affinity());
                self.nodes[i].add(pod);
                self.touch(i);
            }
            None => self.homeless.entry(node).or_default().push(pod),
        }
    }

    /// Removes a pod from its node. Returns whether it was on one.
    pub fn remove_pod(&mut self, uid: &str) -> bool {
        let Some(placed) = self.placed.remove(uid) else { return false };
        self.claim_users.remove(uid);
        if let Some(n) = self.priorities.get_mut(&placed.priority) {
            *n -= 1;
            if *n == 0 {
                self.priorities.remove(&placed.priority);
            }
        }
        if let Some(i) = self.position(&placed.node) {
            if let Some(pod) = self.nodes[i].remove(uid) {
                self.with_affinity -= usize::from(pod.spec.has_pod_affinity());
            }
            self.touch(i);
        } else if let Some(pods) = self.homeless.get_mut(&placed.node) {
            pods.retain(|p| *p.uid != *uid);
            if pods.is_empty() {
                self.homeless.remove(&placed.node);
            }
        }
        true
    }

    /// Adds or updates an assigned pod. Confirms an assumed pod; if the nodes differ, the API server's node is used.
    pub fn put_pod(&mut self, pod: Arc<Pod>) -> PodUpdate {
        let known = self.placed.get(&pod.uid).is_some_and(|p| p.assumed.is_none() && p.node == pod.node_name);
        let mut learnt = if known { PodUpdate::Nothing } else { PodUpdate::Placed };
        // An unchanged placement, the common case when an assumed pod is confirmed, changes no cached result.
        if let Some(p) = self.placed.get_mut(&pod.uid)
            && p.node == pod.node_name
            && let Some(&i) = self.by_name.get(&p.node)
            && let Some(slot) = self.nodes[i].pods.iter_mut().find(|q| q.uid == pod.uid)
            && Arc::ptr_eq(&slot.spec, &pod.spec)
            && slot.deleting == pod.deleting
        {
            p.assumed = None;
            *slot = pod;
            return learnt;
        }
        if known {
            let i = self.position(&pod.node_name);
            let before = i.and_then(|i| self.nodes[i].pods.iter().find(|q| q.uid == pod.uid));
            if before.is_none_or(|before| !Arc::ptr_eq(&before.spec, &pod.spec)) {
                learnt = PodUpdate::Changed;
            }
        }
        self.remove_pod(&pod.uid);
        self.place(pod, None);
        learnt
    }

    /// Adds a pod to its node before the API server has bound it.
    pub fn assume(&mut self, pod: Arc<Pod>) {
        self.remove_pod(&pod.uid);
        self.place(pod, Some(None));
    }

    /// Records that the binding of an assumed pod succeeded. If it is not confirmed, it expires.
    pub fn bound(&mut self, uid: &str, now: Instant) {
        if let Some((uid, _)) = self.placed.get_key_value(uid) {
            let uid = Arc::clone(uid);
            if let Some(Placed { assumed: Some(since), .. }) = self.placed.get_mut(&uid) {
                *since = Some(now);
                self.unconfirmed.push_back((now, uid));
            }
        }
    }

    /// Removes an assumed pod. Returns whether it was one; a confirmed pod stays.
    pub fn forget(&mut self, uid: &str) -> bool {
        self.placed.get(uid).is_some_and(|p| p.assumed.is_some()) && self.remove_pod(uid)
    }

    /// Removes assumed pods whose binding succeeded before `deadline` and was never confirmed. Constant time when there
    /// are none that old, since bindings end in about the order of this list.
    pub fn expire_before(&mut self, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        while let Some((since, _)) = self.unconfirmed.front().filter(|(since, _)| *since < deadline) {
            let since = *since;
            let Some((_, uid)) = self.unconfirmed.pop_front() else { return };
            if matches!(self.placed.get(&uid), Some(Placed { assumed: Some(Some(s)), .. }) if *s == since) {
                tracing::warn!(%uid, "binding of an assumed pod was never confirmed; forgetting it");
                self.remove_pod(&uid);
            }
        }
    }
}
