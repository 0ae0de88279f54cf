//! What the scheduler believes of the cluster: nodes with the pods on them (bound, or assumed to be soon), kept up to
//! date change by change. Every change of a node gives it a new generation, so that what was computed from it before is
//! known to be stale; adding or removing nodes changes the structure, which makes all of it stale.
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

/// Where a known pod is.
#[derive(Debug)]
struct Placed {
    node: Box<str>,
    priority: i32,
    /// Assumed rather than seen; since when its binding is known to have succeeded.
    assumed: Option<Option<Instant>>,
}

/// What the API's word on a placed pod changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learnt {
    /// It is there, which was not known, or only assumed.
    Placed,
    /// It has other labels, or asks for something else.
    Changed,
    /// Nothing that matters here.
    Nothing,
}

/// Nodes and pods.
#[derive(Debug, Default)]
pub struct Cluster {
    nodes: Vec<NodeState>,
    by_name: HashMap<Box<str>, usize>,
    placed: HashMap<Arc<str>, Placed>,
    /// Assumed pods in the order their bindings succeeded; confirmed ones leave when their time has passed.
    unconfirmed: VecDeque<(Instant, Arc<str>)>,
    /// Pods on nodes nobody has told of yet (or any more).
    homeless: HashMap<Box<str>, Vec<Arc<Pod>>>,
    order: Vec<u32>,
    generation: u64,
    structure: u64,
    with_affinity: usize,
    /// How many placed pods have each priority.
    priorities: BTreeMap<i32, usize>,
    images: HashMap<Box<str>, ImageSummary>,
    images_epoch: u64,
    namespaces: Namespaces,
    /// Claims, volumes, classes.
    pub storage: Storage,
    /// Claims for devices, slices, classes.
    pub devices: Devices,
    /// Placed pods by their claims.
    pub claim_users: ClaimUsers,
    /// What selects pods.
    pub workloads: Workloads,
    topologies: Topologies,
}

/// How far an image is spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageSummary {
    /// Size in bytes.
    pub size: i64,
    /// Nodes that hold it.
    pub nodes: i64,
}

impl Cluster {
    /// The nodes; positions are stable while [`structure`](Self::structure) is.
    pub fn nodes(&self) -> &[NodeState] {
        &self.nodes
    }
    /// The position of a node.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }
    /// The order in which nodes are visited: zones in turn.
    pub fn order(&self) -> &[u32] {
        &self.order
    }
    /// Changes when nodes come or go.
    pub fn structure(&self) -> u64 {
        self.structure
    }
    /// Whether any placed pod has pod affinity.
    pub fn any_affinity(&self) -> bool {
        self.with_affinity > 0
    }
    /// The lowest priority of any placed pod.
    pub fn lowest_priority(&self) -> Option<i32> {
        self.priorities.first_key_value().map(|(p, _)| *p)
    }
    /// Changes with the spread of any image.
    pub fn images_epoch(&self) -> u64 {
        self.images_epoch
    }
    /// An image's spread.
    pub fn image(&self, name: &str) -> Option<ImageSummary> {
        self.images.get(name).copied()
    }
    /// Node labels that pods are gathered over.
    pub fn topologies(&self) -> &Topologies {
        &self.topologies
    }
    pub fn namespaces(&mut self) -> &mut Namespaces {
        &mut self.namespaces
    }
    /// What namespaces are called and how they are labelled.
    pub fn known_namespaces(&self) -> &Namespaces {
        &self.namespaces
    }
    /// What is known of a placed pod.
    pub fn spec_of(&self, uid: &str) -> Option<Arc<PodSpec>> {
        let node = self.position(&self.placed.get(uid)?.node)?;
        self.nodes[node].pods.iter().find(|p| *p.uid == *uid).map(|p| Arc::clone(&p.spec))
    }
    /// Changes with any namespace's labels.
    pub fn namespaces_epoch(&self) -> u64 {
        self.namespaces.epoch()
    }
    /// What counting over topologies needs, side by side.
    pub fn parts(&mut self) -> (&[NodeState], &mut Topologies, &Namespaces) {
        (&self.nodes, &mut self.topologies, &self.namespaces)
    }
    /// The node a pod is on or assumed to be on.
    pub fn node_of(&self, uid: &str) -> Option<&str> {
        self.placed.get(uid).map(|p| &*p.node)
    }

    /// How many nodes and placed pods are known, and how many of the pods are only assumed.
    pub fn sizes(&self) -> (usize, usize, usize) {
        let assumed = self.placed.values().filter(|p| p.assumed.is_some()).count();
        (self.nodes.len(), self.placed.len(), assumed)
    }

    fn touch(&mut self, i: usize) {
        self.generation += 1;
        self.nodes[i].generation = self.generation;
    }

    /// Learns a node or its new state.
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

    /// Forgets a node; its pods stay known until they are told to be gone.
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
        // The order is made when it is next read: a thousand nodes that arrive at once need it only once.
        self.order.clear();
    }

    /// Brings the visiting order up to date; call before [`order`](Self::order).
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

    /// Takes a pod off wherever it was. Whether it was anywhere.
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

    /// Learns a pod that is assigned, or its new state. Confirms an assumed one; the API's word on the node counts.
    pub fn put_pod(&mut self, pod: Arc<Pod>) -> Learnt {
        let known = self.placed.get(&pod.uid).is_some_and(|p| p.assumed.is_none() && p.node == pod.node_name);
        let mut learnt = if known { Learnt::Nothing } else { Learnt::Placed };
        // An unchanged placement, the common case when an assumed pod is confirmed, changes no verdict.
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
                learnt = Learnt::Changed;
            }
        }
        self.remove_pod(&pod.uid);
        self.place(pod, None);
        learnt
    }

    /// Takes a pod as placed before the API says so.
    pub fn assume(&mut self, pod: Arc<Pod>) {
        self.remove_pod(&pod.uid);
        self.place(pod, Some(None));
    }

    /// Marks an assumed pod's binding as done: unless it is confirmed, it is forgotten some time after.
    pub fn bound(&mut self, uid: &str, now: Instant) {
        if let Some((uid, _)) = self.placed.get_key_value(uid) {
            let uid = Arc::clone(uid);
            if let Some(Placed { assumed: Some(since), .. }) = self.placed.get_mut(&uid) {
                *since = Some(now);
                self.unconfirmed.push_back((now, uid));
            }
        }
    }

    /// Takes an assumption back; does nothing to a confirmed pod. Whether it was one.
    pub fn forget(&mut self, uid: &str) -> bool {
        self.placed.get(uid).is_some_and(|p| p.assumed.is_some()) && self.remove_pod(uid)
    }

    /// Forgets assumed pods whose binding succeeded before `deadline` and which were never confirmed. Costs nothing
    /// while there are none that old: bindings end in about the order of this list.
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
