//! One decision: the node for a pod, or why it fits on none. Plain data in and out; the queue, time and the API server
//! are handled elsewhere.
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::memo::{Evaluation, Evaluations, Refused, Verdict};
use super::nominations::{Nominations, takes_precedence};
use crate::cluster::Cluster;
use crate::plugins::plugin::{Normalize, SCORE_MAX};
use crate::plugins::table::{PluginSet, Table};
use crate::reason::{NO_NODES, Reason, Tally, summary};
use crate::view::Pod;

/// With fewer nodes than this, all are evaluated.
const FEASIBLE_MIN: usize = 100;
/// The minimum share of the nodes to find, in percent.
const FEASIBLE_PERCENT_MIN: usize = 5;

/// Why a pod fits on no node.
#[derive(Debug)]
pub struct FitError {
    /// The number of nodes.
    pub nodes: usize,
    /// The message of a plugin that rejected the pod before looking at a node.
    pub before: Option<String>,
    /// An error of the pod or of what it needs, independent of nodes: plugin and message.
    pub fault: Option<(&'static str, String)>,
    /// The row of the plugin whose message is in `before`.
    pub before_row: usize,
    /// The number of nodes for each reason.
    pub tally: Tally,
    /// The plugins that rejected at least one node. Changes that they requeue on may help.
    pub plugins: PluginSet,
    /// Nodes where preemption could help.
    pub preemptible: Vec<u32>,
}

impl FitError {
    /// Returns the message for the pod's condition; `after` is the message of preemption.
    pub fn message(&self, after: &str) -> String {
        if self.nodes == 0 { NO_NODES.into() } else { summary(self.nodes, self.before.as_deref(), &self.tally, after) }
    }
}

/// The time spent in each part of the last decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecisionTimes {
    /// Before looking at nodes, and whether that ended the decision.
    pub before: (Duration, bool),
    /// Filtering nodes, and whether any fits.
    pub filter: Option<(Duration, bool)>,
    /// Scoring the nodes that fit.
    pub score: Option<Duration>,
}

#[derive(Debug)]
pub enum Decision {
    /// This node, by position.
    Node(usize),
    /// Extenders choose among these nodes, given with their scores; and why the others were rejected.
    Judge(Vec<(usize, i64)>, FitError),
    Unfit(FitError),
}

/// Chooses nodes for pods and caches results for the next decision.
///
/// A decision visits nodes in zone order, starting where the last one ended, until enough of them fit (`percent`, as
/// upstream's `percentageOfNodesToScore`). It then adds up the weighted scores and picks the highest, at random among
/// equals. Cached [`Evaluations`] make the cost of the next pod of the same template proportional to what changed.
#[derive(Debug)]
pub struct Selector {
    /// Cached evaluations of specs.
    pub evaluations: Evaluations,
    /// The time spent in each part of the last decision.
    pub spent: DecisionTimes,
    table: Arc<Table>,
    percent: usize,
    start: usize,
    random: u64,
    feasible: Vec<u32>,
    totals: Vec<i64>,
    part: Vec<i64>,
}

impl Selector {
    /// Creates a selector with the plugins of `table`. It looks for `percent` of the nodes (0: depends on their number)
    /// and breaks ties by `seed`.
    pub fn new(table: Arc<Table>, percent: usize, seed: u64) -> Self {
        Self {
            evaluations: Evaluations::new(Arc::clone(&table)),
            spent: DecisionTimes::default(),
            table,
            percent,
            start: 0,
            // Xorshift must not start at zero.
            random: seed | 1,
            feasible: Vec::new(),
            totals: Vec::new(),
            part: Vec::new(),
        }
    }

    /// Returns a number below `n`, which must not be zero. Xorshift is random enough to choose among equal nodes.
    pub fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % n as u64) as usize
    }

    /// Returns how many fitting nodes are enough (upstream `numFeasibleNodesToFind`).
    fn wanted(&self, nodes: usize) -> usize {
        if nodes < FEASIBLE_MIN {
            return nodes;
        }
        let adaptive = 50usize.saturating_sub(nodes / 125).max(FEASIBLE_PERCENT_MIN);
        let percent = if self.percent == 0 { adaptive } else { self.percent };
        (nodes * percent / 100).max(FEASIBLE_MIN)
    }

    /// Decides on a pod. With `judged`, all nodes that fit are returned for extenders to choose from.
    pub fn decide(&mut self, cluster: &mut Cluster, promised: &Nominations, pod: &Pod, judged: bool) -> Decision {
        cluster.settle();
        self.spent = DecisionTimes::default();
        let begun = Instant::now();
        let nodes = cluster.nodes().len();
        let mut unfit = FitError {
            nodes,
            before: None,
            fault: None,
            before_row: 0,
            tally: Tally::default(),
            plugins: PluginSet::default(),
            preemptible: Vec::new(),
        };
        if nodes == 0 {
            return Decision::Unfit(unfit);
        }
        let wanted = self.wanted(nodes);
        // Taken out for the time of the decision, so that the evaluation and the rest of the selector can be borrowed
        // together.
        let none = Evaluations::new(Arc::clone(&self.table));
        let mut evaluations = std::mem::replace(&mut self.evaluations, none);
        let evaluation = evaluations.get(&pod.spec, cluster);
        self.spent.before = (begun.elapsed(), evaluation.refused().is_some());
        let decision = if let Some((row, message)) = evaluation.refused() {
            unfit.before = Some(message.clone());
            unfit.before_row = *row;
            unfit.plugins.insert(*row);
            Decision::Unfit(unfit)
        } else {
            let nominated = promised.node_of(&pod.uid).or(pod.nominated.as_deref());
            let nominated = nominated.and_then(|n| cluster.position(n));
            match nominated.filter(|i| !judged && judge(evaluation, cluster, promised, pod, *i).is_none()) {
                Some(i) => Decision::Node(i),
                None => {
                    let begun = Instant::now();
                    self.find(evaluation, cluster, promised, pod, wanted, &mut unfit);
                    self.spent.filter = Some((begun.elapsed(), !self.feasible.is_empty()));
                    match self.feasible.len() {
                        0 => Decision::Unfit(unfit),
                        _ if judged => {
                            self.add_up(evaluation, cluster);
                            let nodes = self.feasible.iter().map(|n| *n as usize);
                            Decision::Judge(nodes.zip(self.totals.iter().copied()).collect(), unfit)
                        }
                        1 => Decision::Node(self.feasible[0] as usize),
                        _ => {
                            let begun = Instant::now();
                            let best = self.best(evaluation, cluster);
                            self.spent.score = Some(begun.elapsed());
                            Decision::Node(best)
                        }
                    }
                }
            }
        };
        self.evaluations = evaluations;
        decision
    }

    /// Returns the positions of the only nodes that some plugins allow, and those plugins; `None` when all are allowed.
    fn only(&self, cluster: &Cluster, pod: &Pod) -> Option<(Vec<usize>, PluginSet)> {
        let mut only: Option<(Vec<usize>, PluginSet)> = None;
        for (row, plugin) in self.table.filtering() {
            let Some(names) = plugin.only_nodes(&pod.spec) else { continue };
            let (before, mut by) = only.take().unzip();
            let positions = names.iter().filter_map(|n| cluster.position(n));
            let allowed = |i: &usize| before.as_ref().is_none_or(|before: &Vec<usize>| before.contains(i));
            let by: &mut PluginSet = by.get_or_insert_default();
            by.insert(row);
            only = Some((positions.filter(allowed).collect(), *by));
        }
        only
    }

    /// Collects nodes that fit, beginning where the last decision ended.
    fn find(
        &mut self,
        evaluation: &mut Evaluation,
        cluster: &mut Cluster,
        promised: &Nominations,
        pod: &Pod,
        wanted: usize,
        unfit: &mut FitError,
    ) {
        self.feasible.clear();
        let nodes = cluster.nodes().len();
        let only = self.only(cluster, pod);
        let count = only.as_ref().map_or(nodes, |(these, _)| these.len());
        let start = self.start % nodes;
        let mut visited = 0;
        for k in 0..count {
            let i = match &only {
                Some((these, _)) => these[k],
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
                Some((row, refusal)) => {
                    unfit.plugins.insert(row);
                    if refusal.faulty {
                        let text = refusal.reasons.first().map(|r| r.0.to_string()).unwrap_or_default();
                        unfit.fault = Some((self.table.rows()[row].name(), text));
                        self.feasible.clear();
                        break;
                    }
                    if refusal.preemptible {
                        unfit.preemptible.push(i as u32);
                    }
                    for reason in &refusal.reasons {
                        unfit.tally.count(reason, 1);
                    }
                }
            }
        }
        match only {
            Some((_, by)) => {
                by.rows().for_each(|row| unfit.plugins.insert(row));
                let names: Vec<_> = by.rows().map(|row| self.table.rows()[row].name()).collect();
                let reason = format!("node(s) didn't satisfy plugin(s) [{}]", names.join(" "));
                unfit.tally.count(&Reason(reason.into()), nodes - count);
            }
            None => self.start = (start + visited) % nodes,
        }
    }

    /// Returns the best of the nodes found, chosen at random among equals.
    fn best(&mut self, evaluation: &Evaluation, cluster: &Cluster) -> usize {
        self.add_up(evaluation, cluster);
        let totals = std::mem::take(&mut self.totals);
        let at = self.pick(&totals).unwrap_or(0);
        self.totals = totals;
        self.feasible[at] as usize
    }

    /// Returns the index of the highest total, chosen at random among equals; `None` when there are none.
    pub fn pick(&mut self, totals: &[i64]) -> Option<usize> {
        let max = totals.iter().copied().max()?;
        let ties = totals.iter().filter(|t| **t == max).count();
        let pick = self.below(ties);
        totals.iter().enumerate().filter(|(_, t)| **t == max).nth(pick).map(|(at, _)| at)
    }

    /// Adds up the scores of the nodes found.
    fn add_up(&mut self, evaluation: &Evaluation, cluster: &Cluster) {
        let nodes = std::mem::take(&mut self.feasible);
        self.totals.clear();
        self.totals.extend(nodes.iter().map(|n| evaluation.scores(*n as usize).0));
        for (k, row) in self.table.scaled().iter().enumerate() {
            let plugin = self.table.rows()[*row];
            let (weight, how) = (self.table.weight(*row), plugin.normalize());
            let raw = |n: &u32| evaluation.scores(*n as usize).1[k];
            let highest = nodes.iter().map(raw).max().unwrap_or(0);
            for (total, n) in self.totals.iter_mut().zip(&nodes) {
                *total += weight * normalized(raw(n), highest, how);
            }
        }
        let totals = &mut self.totals;
        evaluation.counted_scores(cluster, &nodes, &mut self.part, |weight, part| {
            totals.iter_mut().zip(part).for_each(|(total, score)| *total += weight * score);
        });
        self.feasible = nodes;
    }
}

/// Normalizes a raw score, given the highest raw score.
fn normalized(raw: i64, highest: i64, how: Normalize) -> i64 {
    let share = if highest > 0 { SCORE_MAX * raw / highest } else { 0 };
    match how {
        Normalize::Nothing => raw,
        Normalize::ToHighest => share,
        Normalize::Reversed => SCORE_MAX - share,
    }
}

/// Returns why a node is rejected, with room kept for nominated pods of at least this priority.
fn judge(
    evaluation: &mut Evaluation,
    cluster: &mut Cluster,
    promised: &Nominations,
    pod: &Pod,
    i: usize,
) -> Option<Refused> {
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
