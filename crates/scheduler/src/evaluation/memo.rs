//! Cached results for a pod spec: for each node whether it fits and its score, with the node generation of the result.
//! Pods of one template share them, so that after placing one only its node is evaluated again (KEP-5598's aim, without
//! its restrictions).
use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::{Cluster, NodeState};
use crate::plugins::plugin::{Counted, PerNode, Prepared};
use crate::plugins::table::Table;
use crate::reason::Refusal;
use crate::view::PodSpec;

/// The maximum number of cached specs. The least recently used is evicted.
pub const EVALUATIONS_MAX: usize = 32;

/// A rejection with the row of the plugin it came from.
pub type Refused = (usize, Refusal);

/// The result of the plugins that look at one node alone.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The node fits; the sum of the scores that need no normalization.
    Fits(i64),
    /// A plugin rejected the node.
    Refused(Box<Refused>),
}

#[derive(Clone, Debug)]
struct Local {
    generation: u64,
    verdict: Verdict,
}

/// The counts of one plugin that counts pods over many nodes.
#[derive(Debug)]
struct Count {
    row: usize,
    counted: Box<dyn Counted>,
    /// Whether the plugin has a result for this spec now.
    speaks: bool,
}

/// All cached results for one spec.
#[derive(Debug)]
pub struct Evaluation {
    table: Arc<Table>,
    spec: Arc<PodSpec>,
    structure: u64,
    /// The epoch of each plugin's preparation, by row.
    epochs: Vec<u64>,
    locals: Vec<Local>,
    /// Raw scores of nodes that fit, by node and then by scaled row.
    raw: Vec<i64>,
    refused: Option<(usize, String)>,
    per_node: Vec<(usize, Box<dyn PerNode>)>,
    counts: Vec<Count>,
    used: u64,
}

impl Evaluation {
    fn new(table: &Arc<Table>, spec: Arc<PodSpec>, cluster: &mut Cluster) -> Self {
        let unknown = Local { generation: 0, verdict: Verdict::Fits(0) };
        let nodes = cluster.nodes().len();
        let mut out = Self {
            structure: cluster.structure(),
            epochs: table.rows().iter().map(|p| p.epoch(&spec, cluster)).collect(),
            locals: vec![unknown; nodes],
            raw: vec![0; nodes * table.scaled().len()],
            refused: None,
            per_node: Vec::new(),
            counts: Vec::new(),
            used: 0,
            table: Arc::clone(table),
            spec,
        };
        for (row, plugin) in table.rows().iter().enumerate() {
            if !table.filters(row) && table.weight(row) == 0 {
                continue;
            }
            match plugin.prepare(&out.spec, cluster) {
                Prepared::Nothing => {}
                Prepared::Refused(message) if table.filters(row) => out.refused = out.refused.or(Some((row, message))),
                Prepared::Refused(_) => {}
                Prepared::PerNode(asks) => out.per_node.push((row, asks)),
                Prepared::Counted(counted) => out.counts.push(Count { row, counted, speaks: false }),
            }
        }
        out
    }

    /// Reports whether the plugins' preparation is current.
    fn is_current(&self, cluster: &Cluster) -> bool {
        let epochs = self.table.rows().iter().zip(&self.epochs);
        self.structure == cluster.structure() && epochs.into_iter().all(|(p, e)| p.epoch(&self.spec, cluster) == *e)
    }

    /// Updates all counts. Results for single nodes are computed when they are read.
    fn sync(&mut self, cluster: &mut Cluster) {
        let mut stale = false;
        for (_, asks) in &mut self.per_node {
            stale |= asks.refresh(&self.spec, cluster);
        }
        if stale {
            self.locals.iter_mut().for_each(|l| l.generation = 0);
        }
        for c in &mut self.counts {
            c.speaks = c.counted.sync(&self.spec, cluster);
        }
    }

    /// Returns the row and the message of a plugin that rejected the spec before looking at a node.
    pub fn refused(&self) -> Option<&(usize, String)> {
        self.refused.as_ref()
    }

    /// Returns the result for one node of the plugins that look at one node alone.
    pub fn local(&mut self, cluster: &Cluster, i: usize) -> &Verdict {
        let state = &cluster.nodes()[i];
        if self.locals[i].generation != state.generation {
            let verdict = match self.refusal_alone(cluster, state) {
                Some(refused) => Verdict::Refused(Box::new(refused)),
                None => Verdict::Fits(self.score(cluster, i)),
            };
            self.locals[i] = Local { generation: state.generation, verdict };
        }
        &self.locals[i].verdict
    }

    /// Returns why a node in this state is rejected by the plugins that look at one node alone.
    fn refusal_alone(&self, cluster: &Cluster, state: &NodeState) -> Option<Refused> {
        let refused = self.table.filtering().find_map(|(row, p)| Some((row, p.filter(&self.spec, state)?)));
        let mut asked = self.per_node.iter().filter(|(row, _)| self.table.filters(*row));
        refused.or_else(|| asked.find_map(|(row, p)| Some((*row, p.filter(cluster, state)?))))
    }

    /// Returns the sum of the scores that need no normalization; stores the raw scores of the others.
    fn score(&mut self, cluster: &Cluster, i: usize) -> i64 {
        let (state, rows) = (&cluster.nodes()[i], self.table.rows());
        let scaled = self.table.scaled();
        for (k, row) in scaled.iter().enumerate() {
            let asked = self.per_node.iter().filter(|(asks, _)| asks == row);
            let asked: i64 = asked.map(|(_, p)| p.score(&self.spec, cluster, state)).sum();
            self.raw[i * scaled.len() + k] = rows[*row].score(&self.spec, state) + asked;
        }
        let plain = self.table.plain().iter().map(|row| self.table.weight(*row) * rows[*row].score(&self.spec, state));
        let scoring = self.per_node.iter().filter(|(row, _)| self.table.weight(*row) > 0 && !scaled.contains(row));
        let asked = scoring.map(|(row, p)| self.table.weight(*row) * p.score(&self.spec, cluster, state));
        plain.sum::<i64>() + asked.sum::<i64>()
    }

    /// Returns the scores of a node for which [`local`](Self::local) has just returned that it fits: the sum of those
    /// that need no normalization, and the raw ones of each scaled row.
    pub fn scores(&self, i: usize) -> (i64, &[i64]) {
        let width = self.table.scaled().len();
        let sum = match &self.locals[i].verdict {
            Verdict::Fits(sum) => *sum,
            Verdict::Refused(_) => 0,
        };
        (sum, &self.raw[i * width..(i + 1) * width])
    }

    /// Calls `each` with the normalized scores of these nodes and the weight, for each counting plugin that has
    /// preferences.
    pub fn counted_scores(
        &self,
        cluster: &Cluster,
        nodes: &[u32],
        part: &mut Vec<i64>,
        mut each: impl FnMut(i64, &[i64]),
    ) {
        for c in self.counts.iter().filter(|c| c.speaks) {
            let weight = self.table.weight(c.row);
            if weight > 0 && c.counted.scores(cluster, nodes, part) {
                each(weight, part);
            }
        }
    }

    /// Returns why a node is rejected by the plugins that count over many nodes.
    pub fn counted_refusal(&self, cluster: &Cluster, i: usize) -> Option<Refused> {
        let speaking = self.counts.iter().filter(|c| c.speaks && self.table.filters(c.row));
        speaking.into_iter().find_map(|c| Some((c.row, c.counted.filter(cluster, i)?)))
    }

    /// Returns why a node would be rejected if its pods were those of `state`. The counts stay changed: end a series of
    /// these with [`restore`](Self::restore).
    pub fn refusal_if(&mut self, cluster: &mut Cluster, i: usize, state: &NodeState) -> Option<Refused> {
        if let Some(refused) = self.refusal_alone(cluster, state) {
            return Some(refused);
        }
        self.count_as(cluster, i, state);
        self.counted_refusal(cluster, i)
    }

    /// Counts a node with its actual pods again.
    pub fn restore(&mut self, cluster: &mut Cluster, i: usize) {
        if self.counts.iter().any(|c| c.speaks) {
            let state = cluster.nodes()[i].clone();
            self.count_as(cluster, i, &state);
        }
    }

    fn count_as(&mut self, cluster: &mut Cluster, i: usize, state: &NodeState) {
        for c in self.counts.iter_mut().filter(|c| c.speaks) {
            c.counted.count_as(&self.spec, cluster, i, state);
        }
    }
}

/// The cached evaluations of the most recently used specs.
#[derive(Debug)]
pub struct Evaluations {
    table: Arc<Table>,
    /// Evaluations by the address of the spec, which each of them keeps alive.
    all: HashMap<usize, Evaluation>,
    uses: u64,
}

impl Evaluations {
    /// Creates an empty cache for the plugins of this table.
    pub fn new(table: Arc<Table>) -> Self {
        Self { table, all: HashMap::new(), uses: 0 }
    }

    /// Returns the evaluation of a spec, up to date.
    pub fn get(&mut self, spec: &Arc<PodSpec>, cluster: &mut Cluster) -> &mut Evaluation {
        self.uses += 1;
        let at = Arc::as_ptr(spec) as usize;
        if self.all.get(&at).is_some_and(|e| !e.is_current(cluster)) {
            self.all.remove(&at);
        }
        if self.all.len() >= EVALUATIONS_MAX && !self.all.contains_key(&at) {
            let oldest = self.all.iter().min_by_key(|(_, e)| e.used).map(|(at, _)| *at);
            oldest.and_then(|at| self.all.remove(&at));
        }
        let table = &self.table;
        let e = self.all.entry(at).or_insert_with(|| Evaluation::new(table, Arc::clone(spec), cluster));
        e.used = self.uses;
        e.sync(cluster);
        e
    }

    /// Removes all evaluations, to compare with fresh ones in tests.
    #[cfg(test)]
    pub fn clear(&mut self) {
        self.all.clear();
    }
}
