//! What is known of one pod spec: for each node whether it fits and how well, with the generation of the node that this
//! is true of. Pods of one template share it, so after one of them was placed only the node that took it is judged anew
//! (KEP-5598's aim, without its restrictions).
use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::{Cluster, NodeState};
use crate::plugins::plugin::{Counted, PerNode, Prepared};
use crate::plugins::table::Table;
use crate::reason::Refusal;
use crate::view::PodSpec;

/// Specs whose evaluations are kept at once; the one used longest ago goes first.
pub const EVALUATIONS_MAX: usize = 32;

/// A refusal and the row of the plugin it came from.
pub type Refused = (usize, Refusal);

/// The verdict of the plugins that look at one node alone.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It fits as far as they go; the sum of those scores that count as they are.
    Fits(i64),
    /// It does not.
    Refused(Box<Refused>),
}

#[derive(Clone, Debug)]
struct Local {
    generation: u64,
    verdict: Verdict,
}

/// The counts of one plugin.
#[derive(Debug)]
struct Count {
    row: usize,
    counted: Box<dyn Counted>,
    /// Whether it has anything to say now.
    speaks: bool,
}

/// All that is known of one spec.
#[derive(Debug)]
pub struct Evaluation {
    table: Arc<Table>,
    spec: Arc<PodSpec>,
    structure: u64,
    /// By row: what the plugin's preparation was made from.
    epochs: Vec<u64>,
    locals: Vec<Local>,
    /// By node, then scaled row: raw scores of nodes that fit.
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

    /// Whether what was prepared still stands.
    fn is_current(&self, cluster: &Cluster) -> bool {
        let epochs = self.table.rows().iter().zip(&self.epochs);
        self.structure == cluster.structure() && epochs.into_iter().all(|(p, e)| p.epoch(&self.spec, cluster) == *e)
    }

    /// Brings everything that is counted up to date. Verdicts on single nodes follow when asked for.
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

    /// The row and the word of a plugin that refused the spec before any node was looked at.
    pub fn refused(&self) -> Option<&(usize, String)> {
        self.refused.as_ref()
    }

    /// The verdict on one node by the plugins that look at it alone.
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

    /// Why a node in this state will not do, if it will not, by the plugins that look at it alone.
    fn refusal_alone(&self, cluster: &Cluster, state: &NodeState) -> Option<Refused> {
        let refused = self.table.filtering().find_map(|(row, p)| Some((row, p.filter(&self.spec, state)?)));
        let mut asked = self.per_node.iter().filter(|(row, _)| self.table.filters(*row));
        refused.or_else(|| asked.find_map(|(row, p)| Some((*row, p.filter(cluster, state)?))))
    }

    /// The sum of the scores that count as they are; the others are noted.
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

    /// The scores of a node that [`local`](Self::local) has just said fits: the sum of those that count as they are, and
    /// the raw ones of each scaled row.
    pub fn scores(&self, i: usize) -> (i64, &[i64]) {
        let width = self.table.scaled().len();
        let sum = match &self.locals[i].verdict {
            Verdict::Fits(sum) => *sum,
            Verdict::Refused(_) => 0,
        };
        (sum, &self.raw[i * width..(i + 1) * width])
    }

    /// The normalised scores of these nodes by each plugin that counts and prefers any, handed to `each` with its weight.
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

    /// Why a node will not do, if it will not, by the plugins that count over many nodes.
    pub fn counted_refusal(&self, cluster: &Cluster, i: usize) -> Option<Refused> {
        let speaking = self.counts.iter().filter(|c| c.speaks && self.table.filters(c.row));
        speaking.into_iter().find_map(|c| Some((c.row, c.counted.filter(cluster, i)?)))
    }

    /// Why a node will not do if its pods were those of `state`. Leaves the counts as if they were: end a series of
    /// these with [`restore`](Self::restore).
    pub fn refusal_if(&mut self, cluster: &mut Cluster, i: usize, state: &NodeState) -> Option<Refused> {
        if let Some(refused) = self.refusal_alone(cluster, state) {
            return Some(refused);
        }
        self.count_as(cluster, i, state);
        self.counted_refusal(cluster, i)
    }

    /// Counts a node as it is again.
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

/// The evaluations of the specs seen last.
#[derive(Debug)]
pub struct Evaluations {
    table: Arc<Table>,
    /// By the address of the spec, which each holds.
    all: HashMap<usize, Evaluation>,
    uses: u64,
}

impl Evaluations {
    /// None yet, by the plugins of this table.
    pub fn new(table: Arc<Table>) -> Self {
        Self { table, all: HashMap::new(), uses: 0 }
    }

    /// A spec's evaluation, up to date.
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

    /// Drops all of them; for comparing with a fresh start.
    #[cfg(test)]
    pub fn clear(&mut self) {
        self.all.clear();
    }
}
