//! InterPodAffinity: which domains have pods that this pod must or prefers to be near to or far from, and pods with
//! such terms about this pod. Counts are updated node by node; the contribution of one existing spec is computed once.
use std::collections::HashMap;
use std::sync::Arc;

use super::change::Change;
use super::plugin::{Counted, Plugin, PodChange, Prepared, SCORE_MAX};
use crate::cluster::topology::{NO_DOMAIN, Topologies};
use crate::cluster::{Cluster, Namespaces, NodeState};
use crate::reason::{Reason, Refusal};
use crate::view::{PodSpec, PodTerm};

/// The maximum number of specs whose contribution is cached.
const REMEMBERED_MAX: usize = 4096;

/// The purpose of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Required anti-affinity of existing pods.
    Existing,
    /// Pods this one must be near.
    Affinity,
    /// Pods this one must not be near.
    Anti,
    Score,
}

const KINDS: usize = 4;

/// The contribution of one pod to one topology.
#[derive(Clone, Copy, Debug)]
struct Part {
    kind: Kind,
    topology: u32,
    delta: i64,
}

/// Counts by topology and domain.
#[derive(Debug, Default)]
struct Counts {
    by_topology: Vec<(u32, Vec<i64>)>,
    /// The sum of all counts; zero for the required kinds means that no pod matches anywhere.
    total: i64,
}

impl Counts {
    fn add(&mut self, topology: u32, domain: u32, delta: i64) {
        self.total += delta;
        let at = match self.by_topology.iter().position(|(t, _)| *t == topology) {
            Some(at) => at,
            None => {
                self.by_topology.push((topology, Vec::new()));
                self.by_topology.len() - 1
            }
        };
        let counts = &mut self.by_topology[at].1;
        let d = domain as usize;
        if counts.len() <= d {
            counts.resize(d + 1, 0);
        }
        counts[d] += delta;
    }

    fn get(&self, topology: u32, domain: u32) -> i64 {
        let of = self.by_topology.iter().find(|(t, _)| *t == topology);
        of.and_then(|(_, c)| c.get(domain as usize)).copied().unwrap_or(0)
    }
}

/// The plugin with its arguments; see the module.
#[derive(Clone, Copy, Debug)]
pub struct InterPodAffinity {
    /// The weight of an existing pod's required affinity to this pod (`hardPodAffinityWeight`).
    pub required_weight: i64,
    /// Whether preferences of existing pods are ignored for a pod without preferences
    /// (`ignorePreferredTermsOfExistingPods`).
    pub ignores_existing: bool,
}

impl InterPodAffinity {
    /// The arguments of the default profile.
    pub const DEFAULT: Self = Self { required_weight: 1, ignores_existing: false };
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        "InterPodAffinity"
    }

    fn prepare(&self, spec: &PodSpec, _: &mut Cluster) -> Prepared {
        let silent = self.ignores_existing && spec.preferences.is_empty();
        Prepared::Counted(Box::new(WhenNeeded { counts: None, required_weight: self.required_weight, silent }))
    }

    fn epoch(&self, _: &PodSpec, cluster: &Cluster) -> u64 {
        cluster.namespaces_epoch()
    }

    fn weight(&self) -> i64 {
        2
    }

    fn requeues_on(&self, change: Change) -> bool {
        use Change::{AssignedPodAdd, AssignedPodDelete, AssignedPodUpdate, Namespaces, NodeDelete};
        matches!(change, NodeDelete | AssignedPodAdd | AssignedPodUpdate | AssignedPodDelete | Namespaces)
    }

    /// Useful are a new node, and a node that moved to another domain of a term's topology.
    fn node_hint(&self, spec: &PodSpec, old: Option<&NodeState>, new: &NodeState) -> bool {
        let Some(old) = old else { return true };
        let (was, is) = (&old.node.labels, &new.node.labels);
        let key = |term: &PodTerm| (was.get(&*term.topology_key), is.get(&*term.topology_key));
        let joins = spec.affinity.iter().map(key).any(|(was, is)| is.is_some() && was != is);
        let leaves = spec.anti_affinity.iter().map(key).any(|(was, is)| was.is_some() && was != is);
        // A pod without terms was rejected because of other pods' anti-affinity, which may use any topology.
        let hated = spec.affinity.is_empty() && spec.anti_affinity.is_empty() && was != is;
        joins || leaves || hated
    }

    /// Useful are a pod that now matches the pod's affinity, one that no longer does where the pod matches its own
    /// terms (it may then be the first of its group), and one whose anti-affinity no longer conflicts.
    fn pod_hint(&self, spec: &PodSpec, change: PodChange<'_>) -> bool {
        let matches = |term: &PodTerm, pod: &PodSpec| {
            term.matches(&pod.namespace, change.namespaces.labels(&pod.namespace), &pod.labels)
        };
        // One pod must match all of the terms.
        let wanted = |pod: Option<&PodSpec>| {
            pod.is_some_and(|p| !spec.affinity.is_empty() && spec.affinity.iter().all(|term| matches(term, p)))
        };
        let hated = |pod: Option<&PodSpec>| pod.is_some_and(|p| spec.anti_affinity.iter().any(|term| matches(term, p)));
        let hates = |pod: Option<&PodSpec>| pod.is_some_and(|p| p.anti_affinity.iter().any(|term| matches(term, spec)));
        let (old, new) = (change.old, change.new);
        let may_be_first = wanted(old) && !wanted(new) && wanted(Some(spec));
        (wanted(new) && !wanted(old)) || may_be_first || (hated(old) && !hated(new)) || (hates(old) && !hates(new))
    }
}

/// Counts that start once the new pod or an existing one has terms.
#[derive(Debug)]
struct WhenNeeded {
    counts: Option<InterPod>,
    required_weight: i64,
    /// Whether the plugin does not score.
    silent: bool,
}

impl Counted for WhenNeeded {
    fn sync(&mut self, spec: &PodSpec, cluster: &mut Cluster) -> bool {
        if self.counts.is_none() && (spec.has_pod_affinity() || cluster.any_affinity()) {
            self.counts = Some(InterPod::new(spec, cluster, self.required_weight));
        }
        let Some(counts) = &mut self.counts else { return false };
        counts.sync(spec, cluster);
        true
    }

    fn count_as(&mut self, spec: &PodSpec, cluster: &mut Cluster, i: usize, state: &NodeState) {
        if let Some(counts) = &mut self.counts {
            let (nodes, topologies, namespaces) = cluster.parts();
            counts.apply(spec, i, state, nodes, topologies, namespaces);
        }
    }

    fn filter(&self, cluster: &Cluster, i: usize) -> Option<Refusal> {
        self.counts.as_ref().and_then(|counts| counts.refusal(i, cluster.topologies()))
    }

    fn scores(&self, cluster: &Cluster, nodes: &[u32], out: &mut Vec<i64>) -> bool {
        !self.silent && self.counts.as_ref().is_some_and(|counts| counts.scores(nodes, cluster.topologies(), out))
    }
}

/// The counts for one spec.
#[derive(Debug)]
struct InterPod {
    counts: [Counts; KINDS],
    /// The topologies of the spec's own required affinity terms.
    affinity: Vec<u32>,
    anti: Vec<u32>,
    /// Whether the spec matches its own required affinity.
    own: bool,
    required_weight: i64,
    generations: Vec<u64>,
    contributed: Vec<Vec<(Part, u32)>>,
    remembered: HashMap<usize, (Arc<PodSpec>, Box<[Part]>)>,
}

impl InterPod {
    /// Creates empty counts for a spec.
    fn new(spec: &PodSpec, cluster: &mut Cluster, required_weight: i64) -> Self {
        let (nodes, topologies, namespaces) = cluster.parts();
        let mut numbers = |terms: &[PodTerm]| -> Vec<u32> {
            terms.iter().map(|t| topologies.number(&t.topology_key, nodes) as u32).collect()
        };
        let (affinity, anti) = (numbers(&spec.affinity), numbers(&spec.anti_affinity));
        let labels = namespaces.labels(&spec.namespace);
        let own = spec.affinity.iter().all(|t| t.matches(&spec.namespace, labels, &spec.labels));
        Self {
            counts: Default::default(),
            affinity,
            anti,
            own,
            required_weight,
            generations: vec![0; nodes.len()],
            contributed: vec![Vec::new(); nodes.len()],
            remembered: HashMap::new(),
        }
    }

    /// Counts the nodes that changed.
    fn sync(&mut self, spec: &PodSpec, cluster: &mut Cluster) {
        let (nodes, topologies, namespaces) = cluster.parts();
        for (i, state) in nodes.iter().enumerate() {
            if self.generations[i] != state.generation {
                self.generations[i] = state.generation;
                self.apply(spec, i, state, nodes, topologies, namespaces);
            }
        }
    }

    /// Counts one node with the pods of `state`, replacing what was counted of it.
    fn apply(
        &mut self,
        spec: &PodSpec,
        i: usize,
        state: &NodeState,
        nodes: &[NodeState],
        topologies: &mut Topologies,
        namespaces: &Namespaces,
    ) {
        let mut list = std::mem::take(&mut self.contributed[i]);
        for (part, domain) in list.drain(..) {
            self.counts[part.kind as usize].add(part.topology, domain, -part.delta);
        }
        let all = spec.has_pod_affinity();
        if all || state.with_affinity > 0 {
            for pod in state.pods.iter().filter(|p| all || p.spec.has_pod_affinity()) {
                let at = Arc::as_ptr(&pod.spec) as usize;
                if !self.remembered.contains_key(&at) {
                    if self.remembered.len() >= REMEMBERED_MAX {
                        self.remembered.clear();
                    }
                    let mut parts = parts(spec, &pod.spec, nodes, topologies, namespaces);
                    let drawn = pod.spec.affinity.iter().filter(|t| wants(t, spec, namespaces));
                    parts.extend(drawn.map(|t| {
                        let topology = topologies.number(&t.topology_key, nodes) as u32;
                        Part { kind: Kind::Score, topology, delta: self.required_weight }
                    }));
                    self.remembered.insert(at, (Arc::clone(&pod.spec), parts.into()));
                }
                for part in &self.remembered[&at].1 {
                    let domain = topologies.get(part.topology as usize).of(i);
                    if domain != NO_DOMAIN {
                        self.counts[part.kind as usize].add(part.topology, domain, part.delta);
                        list.push((*part, domain));
                    }
                }
            }
        }
        self.contributed[i] = list;
    }

    fn count(&self, kind: Kind) -> &Counts {
        &self.counts[kind as usize]
    }

    /// Returns why a pod of this spec must not be on a node.
    fn refusal(&self, i: usize, topologies: &Topologies) -> Option<Refusal> {
        let refuse = |preemptible, reason| Some(Refusal::one(preemptible, reason));
        let of = |t: u32| topologies.get(t as usize).of(i);
        if !self.affinity.is_empty() {
            let here = self.count(Kind::Affinity);
            if self.affinity.iter().any(|t| of(*t) == NO_DOMAIN) {
                return refuse(false, Reason::POD_AFFINITY);
            }
            let near = self.affinity.iter().all(|t| here.get(*t, of(*t)) > 0);
            // The first pod of a group with affinity to itself has no other pod to match.
            let first = here.total == 0 && self.own;
            if !near && !first {
                return refuse(false, Reason::POD_AFFINITY);
            }
        }
        let anti = self.count(Kind::Anti);
        if self.anti.iter().any(|t| of(*t) != NO_DOMAIN && anti.get(*t, of(*t)) > 0) {
            return refuse(true, Reason::POD_ANTI_AFFINITY);
        }
        let existing = self.count(Kind::Existing);
        let met = |(t, counts): &(u32, Vec<i64>)| counts.get(of(*t) as usize).is_some_and(|n| *n > 0);
        if existing.total > 0 && existing.by_topology.iter().any(met) {
            return refuse(true, Reason::EXISTING_ANTI_AFFINITY);
        }
        None
    }

    /// Writes the normalized scores (0 to 100) of these nodes to `out`; false when there are no preferences.
    fn scores(&self, nodes: &[u32], topologies: &Topologies, out: &mut Vec<i64>) -> bool {
        let scores = self.count(Kind::Score);
        if scores.by_topology.is_empty() {
            return false;
        }
        out.clear();
        out.extend(nodes.iter().map(|n| {
            let of = |t: u32| topologies.get(t as usize).of(*n as usize) as usize;
            scores.by_topology.iter().filter_map(|(t, c)| c.get(of(*t))).sum::<i64>()
        }));
        let (min, max) = out.iter().fold((i64::MAX, i64::MIN), |(a, b), s| (a.min(*s), b.max(*s)));
        for s in out.iter_mut() {
            *s = if max > min { (SCORE_MAX as f64 * ((*s - min) as f64 / (max - min) as f64)) as i64 } else { 0 };
        }
        true
    }
}

/// Reports whether a term of an existing pod matches a new one.
fn wants(term: &PodTerm, new: &PodSpec, namespaces: &Namespaces) -> bool {
    term.matches(&new.namespace, namespaces.labels(&new.namespace), &new.labels)
}

/// Returns what an existing spec contributes to the counts of a new one, except its required affinity, whose weight is
/// configured.
fn parts(
    new: &PodSpec,
    existing: &PodSpec,
    nodes: &[NodeState],
    topologies: &mut Topologies,
    namespaces: &Namespaces,
) -> Vec<Part> {
    let new_labels = namespaces.labels(&new.namespace);
    let existing_labels = namespaces.labels(&existing.namespace);
    let wants_new = |t: &PodTerm| t.matches(&new.namespace, new_labels, &new.labels);
    let wants_existing = |t: &PodTerm| t.matches(&existing.namespace, existing_labels, &existing.labels);
    let mut out = Vec::new();
    let mut part = |kind, term: &PodTerm, delta| {
        let topology = topologies.number(&term.topology_key, nodes) as u32;
        out.push(Part { kind, topology, delta });
    };
    for t in existing.anti_affinity.iter().filter(|t| wants_new(t)) {
        part(Kind::Existing, t, 1);
    }
    if !new.affinity.is_empty() && new.affinity.iter().all(wants_existing) {
        for t in &new.affinity {
            part(Kind::Affinity, t, 1);
        }
    }
    for t in new.anti_affinity.iter().filter(|t| wants_existing(t)) {
        part(Kind::Anti, t, 1);
    }
    for (weight, t) in new.preferences.iter().filter(|(_, t)| wants_existing(t)) {
        part(Kind::Score, t, *weight);
    }
    for (weight, t) in existing.preferences.iter().filter(|(_, t)| wants_new(t)) {
        part(Kind::Score, t, *weight);
    }
    out
}
