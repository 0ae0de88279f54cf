//! DefaultPreemption: whether deleting less important pods of one node would make room, which pods at minimum, and the
//! node with the least damage. Only decides; [`crate::run`] deletes the pods.
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use kelson_meta::ObjectKey;

use super::memo::Evaluation;
use super::nominations::{Nominations, takes_precedence};
use super::select::FitError;
use crate::cluster::{Cluster, NodeState};
use crate::reason::{Reason, Tally, summary};
use crate::view::{DisruptionBudget, Pod};

/// The minimum number of candidates to look for (`DefaultPreemptionArgs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thoroughness {
    /// Share of the nodes in percent (`minCandidateNodesPercentage`).
    pub percent: usize,
    /// Absolute number (`minCandidateNodesAbsolute`), at most the number of nodes.
    pub nodes: usize,
}

impl Default for Thoroughness {
    fn default() -> Self {
        Self { percent: 10, nodes: 100 }
    }
}

/// The result of a preemption attempt.
#[derive(Debug)]
pub enum Outcome {
    /// Delete these pods of this node.
    Make {
        /// The position of the node.
        node: usize,
        /// The pods to delete.
        victims: Vec<Arc<Pod>>,
    },
    /// Extenders choose among these candidates.
    Judge(Vec<Candidate>),
    /// Preemption does not help; the message. An earlier nomination is cleared.
    Useless(String),
    /// The pod may not preempt, or not now; the message. An earlier nomination stays.
    Ineligible(String),
}

/// A node with the pods to delete on it.
#[derive(Debug)]
pub struct Candidate {
    /// The position of the node in the cluster.
    pub node: usize,
    /// The pods to delete, the most important first.
    pub victims: Vec<Arc<Pod>>,
    /// The number of PodDisruptionBudgets that would be violated.
    pub violations: usize,
}

/// Tries preemption for a pod. With `judged`, all candidates are returned for extenders to choose from.
pub fn preempt(
    evaluation: &mut Evaluation,
    cluster: &mut Cluster,
    promised: &Nominations,
    budgets: &HashMap<ObjectKey, DisruptionBudget>,
    pod: &Pod,
    (unfit, offset, thoroughness): (&FitError, usize, Thoroughness),
    judged: bool,
) -> Outcome {
    if pod.spec.never_preempts {
        return Outcome::Ineligible("preemption: not eligible due to preemptionPolicy=Never.".into());
    }
    let nominated = promised.node_of(&pod.uid).and_then(|n| cluster.position(n));
    if let Some(i) = nominated.filter(|i| unfit.preemptible.contains(&(*i as u32))) {
        let going = |p: &Arc<Pod>| p.spec.priority < pod.spec.priority && p.deleting && p.preempted;
        if cluster.nodes()[i].pods.iter().any(going) {
            let text = "preemption: not eligible due to a terminating pod on the nominated node.";
            return Outcome::Ineligible(text.into());
        }
    }
    let nodes = &unfit.preemptible;
    let enough = (nodes.len() * thoroughness.percent / 100).max(thoroughness.nodes).min(nodes.len());
    let mut tally = Tally::default();
    tally.count(&Reason::fixed("Preemption is not helpful for scheduling"), unfit.nodes - nodes.len());
    let no_victims = Reason::fixed("No preemption victims found for incoming pod");
    let mut candidates: Vec<Candidate> = Vec::new();
    if cluster.lowest_priority().is_none_or(|p| p >= pod.spec.priority) {
        tally.count(&no_victims, nodes.len());
    } else {
        for k in 0..nodes.len() {
            let i = nodes[(offset + k) % nodes.len()] as usize;
            match victims(evaluation, cluster, promised, budgets, pod, i) {
                Ok(c) => candidates.push(c),
                Err(None) => tally.count(&no_victims, 1),
                Err(Some(reasons)) => reasons.iter().for_each(|r| tally.count(r, 1)),
            }
            if candidates.len() >= enough && candidates.iter().any(|c| c.violations == 0) {
                break;
            }
        }
    }
    if judged && !candidates.is_empty() {
        return Outcome::Judge(candidates);
    }
    match best(candidates) {
        Some(c) => Outcome::Make { node: c.node, victims: c.victims },
        None => Outcome::Useless(format!("preemption: {}", summary(unfit.nodes, None, &tally, ""))),
    }
}

/// Sort key: more important pods first.
fn importance(p: &Pod) -> (Reverse<i32>, i64) {
    (Reverse(p.spec.priority), p.started_s)
}

/// Returns the smallest set of least important pods whose deletion makes room, or the reason why there is none.
fn victims(
    evaluation: &mut Evaluation,
    cluster: &mut Cluster,
    promised: &Nominations,
    budgets: &HashMap<ObjectKey, DisruptionBudget>,
    pod: &Pod,
    i: usize,
) -> Result<Candidate, Option<Vec<Reason>>> {
    let node = &cluster.nodes()[i];
    let mut lesser: Vec<Arc<Pod>> = node.pods.iter().filter(|p| p.spec.priority < pod.spec.priority).cloned().collect();
    if lesser.is_empty() {
        return Err(None);
    }
    let mut state = node.clone();
    for p in &lesser {
        state.remove(&p.uid);
    }
    for rival in promised.on(&node.node.name).iter().filter(|p| takes_precedence(p, pod)) {
        state.add(Arc::clone(rival));
    }
    if let Some((_, r)) = evaluation.refusal_if(cluster, i, &state) {
        evaluation.restore(cluster, i);
        return Err(Some(r.reasons));
    }
    lesser.sort_by_key(|p| importance(p));
    let (violating, harmless) = by_budgets(lesser, budgets);
    let mut out = Candidate { node: i, victims: Vec::new(), violations: 0 };
    for p in violating {
        out.violations += usize::from(!reprieve(evaluation, cluster, i, &mut state, p, &mut out.victims));
    }
    for p in harmless {
        reprieve(evaluation, cluster, i, &mut state, p, &mut out.victims);
    }
    evaluation.restore(cluster, i);
    out.victims.sort_by_key(|p| importance(p));
    // No victims are needed, so the result that led here is outdated; the pod is retried later.
    if out.victims.is_empty() { Err(None) } else { Ok(out) }
}

/// Keeps a pod if the new one fits beside it.
fn reprieve(
    evaluation: &mut Evaluation,
    cluster: &mut Cluster,
    i: usize,
    state: &mut NodeState,
    p: Arc<Pod>,
    victims: &mut Vec<Arc<Pod>>,
) -> bool {
    state.add(Arc::clone(&p));
    let stays = evaluation.refusal_if(cluster, i, state).is_none();
    if !stays {
        state.remove(&p.uid);
        victims.push(p);
    }
    stays
}

/// Splits pods whose deletion would violate a PodDisruptionBudget from the others, keeping their order.
fn by_budgets(pods: Vec<Arc<Pod>>, budgets: &HashMap<ObjectKey, DisruptionBudget>) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
    let readable = budgets.values().filter_map(|b| {
        let selector = b.spec.selector.as_ref()?.selector().ok()?;
        (!selector.is_everything()).then_some((b, selector, b.status.disruptions_allowed))
    });
    let mut budgets: Vec<_> = readable.collect();
    pods.into_iter().partition(|p| {
        let mut violates = false;
        for (b, selector, left) in &mut budgets {
            let covers = b.metadata.namespace == p.namespace()
                && !p.spec.labels.is_empty()
                && selector.matches(&p.spec.labels)
                && !b.status.disrupted_pods.contains_key(&*p.name);
            if covers {
                *left -= 1;
                violates |= *left < 0;
            }
        }
        violates
    })
}

/// Returns the candidate with the fewest violated budgets, then the lowest highest priority, the lowest sum of
/// priorities, the fewest pods, and the latest start of its most important pods.
pub fn best(candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.into_iter().min_by_key(|c| {
        let highest = c.victims.first().map_or(i32::MIN, |p| p.spec.priority);
        // Shifted as upstream does, so that negative priorities do not make more victims look better.
        let sum: i64 = c.victims.iter().map(|p| i64::from(p.spec.priority) + i64::from(i32::MAX) + 1).sum();
        let earliest = c.victims.iter().filter(|p| p.spec.priority == highest).map(|p| p.started_s).min();
        (c.violations, highest, sum, c.victims.len(), Reverse(earliest))
    })
}
