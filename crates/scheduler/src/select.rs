//! One decision: which node a pod goes to, or why to none. Plain data in and out; the queue, time and the API are
//! others' business.
use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::evaluation::{Evaluation, Evaluations, Verdict};
use crate::reason::{NO_NODES, Plugin, Plugins, Reason, Refusal, Tally, summary};
use crate::storage::Claims;
use crate::view::Pod;

/// With fewer nodes than this all are looked at.
const FEASIBLE_MIN: usize = 100;
/// At least this share of the nodes is looked for, percent.
const FEASIBLE_PERCENT_MIN: usize = 5;

/// How much each score counts.
mod weight {
    pub const FIT: i64 = 1;
    pub const BALANCED: i64 = 1;
    pub const IMAGES: i64 = 1;
    pub const NODE_AFFINITY: i64 = 2;
    pub const SPREAD: i64 = 2;
    pub const INTERPOD: i64 = 2;
    pub const TAINTS: i64 = 3;
}

/// Pods that were promised a node, because others make room for them there.
#[derive(Debug, Default)]
pub struct Nominations {
    by_node: HashMap<Box<str>, Vec<Arc<Pod>>>,
    node_of: HashMap<Arc<str>, Box<str>>,
}

impl Nominations {
    /// Promises a node, in place of an earlier promise.
    pub fn put(&mut self, pod: Arc<Pod>, node: &str) {
        self.remove(&pod.uid);
        self.node_of.insert(Arc::clone(&pod.uid), node.into());
        self.by_node.entry(node.into()).or_default().push(pod);
    }
    /// Takes the promise back.
    pub fn remove(&mut self, uid: &str) {
        let Some(node) = self.node_of.remove(uid) else { return };
        if let Some(pods) = self.by_node.get_mut(&node) {
            pods.retain(|p| *p.uid != *uid);
            if pods.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }
    /// The node a pod was promised.
    pub fn node_of(&self, uid: &str) -> Option<&str> {
        self.node_of.get(uid).map(|n| &**n)
    }
    /// Who was promised a node.
    pub fn on(&self, node: &str) -> &[Arc<Pod>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }
}

/// A pod that goes nowhere for now.
#[derive(Debug)]
pub struct Unfit {
    /// How many nodes there are.
    pub nodes: usize,
    /// The word of a plugin that refused before any node was looked at.
    pub before: Option<String>,
    /// The reasons counted.
    pub tally: Tally,
    /// Who refused.
    pub plugins: Plugins,
    /// Nodes where removing pods could help.
    pub preemptible: Vec<u32>,
}

impl Unfit {
    /// The sentence for people, with what preemption had to say.
    pub fn message(&self, after: &str) -> String {
        if self.nodes == 0 { NO_NODES.into() } else { summary(self.nodes, self.before.as_deref(), &self.tally, after) }
    }
}

/// A decision.
#[derive(Debug)]
pub enum Decision {
    /// This node, by its position.
    Node(usize),
    /// None.
    Unfit(Unfit),
}

/// Decides, and remembers what helps the next decision.
#[derive(Debug)]
pub struct Selector {
    /// Evaluations of specs.
    pub evaluations: Evaluations,
    percent: usize,
    start: usize,
    random: u64,
    feasible: Vec<u32>,
    totals: Vec<i64>,
    part: Vec<i64>,
}

impl Selector {
    /// Looks for `percent` of the nodes (0: by their number); breaks ties by `seed`.
    pub fn new(percent: usize, seed: u64) -> Self {
        Self {
            evaluations: Evaluations::default(),
            percent,
            start: 0,
            // Xorshift must not start at zero.
            random: seed | 1,
            feasible: Vec::new(),
            totals: Vec::new(),
            part: Vec::new(),
        }
    }

    /// A number below `n` (not zero). Which of equal nodes wins needs no better randomness than xorshift's.
    pub fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % n as u64) as usize
    }

    /// How many fitting nodes are enough (upstream `numFeasibleNodesToFind`).
    fn wanted(&self, nodes: usize) -> usize {
        if nodes < FEASIBLE_MIN {
            return nodes;
        }
        let adaptive = 50usize.saturating_sub(nodes / 125).max(FEASIBLE_PERCENT_MIN);
        let percent = if self.percent == 0 { adaptive } else { self.percent };
        (nodes * percent / 100).max(FEASIBLE_MIN)
    }

    /// Decides on a pod.
    pub fn decide(&mut self, cluster: &mut Cluster, promised: &Nominations, pod: &Pod) -> Decision {
        cluster.settle();
        let nodes = cluster.nodes().len();
        let mut unfit = Unfit {
            nodes,
            before: None,
            tally: Tally::default(),
            plugins: Plugins::default(),
            preemptible: Vec::new(),
        };
        if nodes == 0 {
            return Decision::Unfit(unfit);
        }
        let wanted = self.wanted(nodes);
        let mut evaluations = std::mem::take(&mut self.evaluations);
        let evaluation = evaluations.get(&pod.spec, cluster);
        let decision = if let Claims::Refused(message) = &evaluation.claims {
            unfit.before = Some(message.clone());
            unfit.plugins.insert(Plugin::VolumeBinding);
            Decision::Unfit(unfit)
        } else {
            let nominated = promised.node_of(&pod.uid).or(pod.nominated.as_deref());
            let nominated = nominated.and_then(|n| cluster.position(n));
            match nominated.filter(|i| judge(evaluation, cluster, promised, pod, *i).is_none()) {
                Some(i) => Decision::Node(i),
                None => {
                    self.find(evaluation, cluster, promised, pod, wanted, &mut unfit);
                    match self.feasible.len() {
                        0 => Decision::Unfit(unfit),
                        1 => Decision::Node(self.feasible[0] as usize),
                        _ => Decision::Node(self.best(evaluation, cluster)),
                    }
                }
            }
        };
        self.evaluations = evaluations;
        decision
    }

    /// Collects nodes that fit, beginning where the last decision ended.
    fn find(
        &mut self,
        evaluation: &mut Evaluation,
        cluster: &mut Cluster,
        promised: &Nominations,
        pod: &Pod,
        wanted: usize,
        unfit: &mut Unfit,
    ) {
        self.feasible.clear();
        let nodes = cluster.nodes().len();
        let only = pod.spec.only_nodes.as_ref();
        let only: Option<Vec<usize>> = only.map(|o| o.iter().filter_map(|n| cluster.position(n)).collect());
        let count = only.as_ref().map_or(nodes, Vec::len);
        let start = self.start % nodes;
        let mut visited = 0;
        for k in 0..count {
            let i = match &only {
                Some(these) => these[k],
                None => cluster.order()[if start + k < nodes { start + k } else { start + k - nodes }] as usize,
            };
            visited += 1;
            match judge(evaluation, cluster, promised, pod, i) {
                None => {
                    self.feasible.push(i as u32);
                    if self.feasible.len() >= wanted {
                        break;
                    }
                }
                Some(refusal) => {
                    unfit.plugins.insert(refusal.plugin);
                    if refusal.preemptible {
                        unfit.preemptible.push(i as u32);
                    }
                    for reason in &refusal.reasons {
                        unfit.tally.count(reason, 1);
                    }
                }
            }
        }
        if only.is_some() {
            unfit.plugins.insert(Plugin::NodeAffinity);
            unfit.tally.count(&Reason::fixed("node(s) didn't satisfy plugin(s) [NodeAffinity]"), nodes - count);
        } else {
            self.start = (start + visited) % nodes;
        }
    }

    /// The best of the nodes found; one of them at random where several are.
    fn best(&mut self, evaluation: &mut Evaluation, cluster: &Cluster) -> usize {
        let nodes = std::mem::take(&mut self.feasible);
        let (mut affinity_max, mut taints_max) = (0, 0);
        for n in &nodes {
            let s = evaluation.scores(*n as usize);
            affinity_max = affinity_max.max(s.affinity);
            taints_max = taints_max.max(s.taints);
        }
        self.totals.clear();
        self.totals.extend(nodes.iter().map(|n| {
            let s = evaluation.scores(*n as usize);
            let affinity = if affinity_max > 0 { 100 * s.affinity / affinity_max } else { 0 };
            let taints = if taints_max > 0 { 100 - 100 * s.taints / taints_max } else { 100 };
            weight::FIT * s.least
                + weight::BALANCED * s.balanced
                + weight::IMAGES * s.images
                + weight::NODE_AFFINITY * affinity
                + weight::TAINTS * taints
        }));
        if let Some(spread) = &evaluation.soft {
            spread.scores(&nodes, &mut self.part);
            self.totals.iter_mut().zip(&self.part).for_each(|(t, p)| *t += weight::SPREAD * p);
        }
        if let Some(interpod) = &evaluation.interpod
            && interpod.scores(&nodes, cluster.topologies(), &mut self.part)
        {
            self.totals.iter_mut().zip(&self.part).for_each(|(t, p)| *t += weight::INTERPOD * p);
        }
        let max = self.totals.iter().copied().max().unwrap_or(0);
        let ties = self.totals.iter().filter(|t| **t == max).count().max(1);
        let pick = self.below(ties);
        let at = self.totals.iter().enumerate().filter(|(_, t)| **t == max).nth(pick).map_or(0, |(at, _)| at);
        let chosen = nodes[at] as usize;
        self.feasible = nodes;
        chosen
    }
}

/// Why a node will not do, if it will not; with room kept for pods of at least this priority that were promised it.
fn judge(
    evaluation: &mut Evaluation,
    cluster: &mut Cluster,
    promised: &Nominations,
    pod: &Pod,
    i: usize,
) -> Option<Refusal> {
    let refusal = match evaluation.local(cluster, i) {
        Verdict::Refused(r) => Some((**r).clone()),
        Verdict::Fits(_) => evaluation.counted_refusal(cluster, i),
    };
    let node = &cluster.nodes()[i];
    let rivals = promised.on(&node.node.name);
    if refusal.is_some() || rivals.is_empty() {
        return refusal;
    }
    let rivals: Vec<_> = rivals.iter().filter(|p| takes_precedence(p, pod)).cloned().collect();
    if rivals.is_empty() {
        return None;
    }
    let mut state = node.clone();
    rivals.into_iter().for_each(|p| state.add(p));
    let refusal = evaluation.refusal_if(cluster, i, &state);
    evaluation.restore(cluster, i);
    refusal
}

/// Whether room promised to one pod counts as taken for another.
pub fn takes_precedence(promised: &Pod, pod: &Pod) -> bool {
    promised.uid != pod.uid && promised.spec.priority >= pod.spec.priority
}
