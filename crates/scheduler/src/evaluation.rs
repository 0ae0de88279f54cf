//! What is known of one pod spec: for each node whether it fits and how well, with the generation of the node that this
//! is true of. Pods of one template share it, so after one of them was placed only the node that took it is judged anew
//! (KEP-5598's aim, without its restrictions).
use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::{Cluster, ImageSummary, NodeState};
use crate::plugins::interpod::InterPod;
use crate::plugins::local::{self, Scores};
use crate::plugins::spread::Spread;
use crate::reason::Refusal;
use crate::storage::Claims;
use crate::view::PodSpec;

/// Specs whose evaluations are kept at once; the one used longest ago goes first.
pub const EVALUATIONS_MAX: usize = 32;

/// The verdict of the plugins that look at one node alone.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It fits as far as they go.
    Fits(Scores),
    /// It does not.
    Refused(Box<Refusal>),
}

#[derive(Clone, Debug)]
struct Local {
    generation: u64,
    verdict: Verdict,
}

/// What of the cluster, beyond the nodes' generations, an evaluation was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Basis {
    structure: u64,
    workloads: u64,
    namespaces: u64,
    storage: u64,
}

impl Basis {
    fn of(spec: &PodSpec, cluster: &mut Cluster) -> Self {
        Self {
            structure: cluster.structure(),
            workloads: if spec.spread.is_empty() { cluster.workloads.epoch(&spec.namespace) } else { 0 },
            namespaces: cluster.namespaces().epoch(),
            storage: if spec.claims.is_empty() { 0 } else { cluster.storage.epoch() },
        }
    }
}

/// All that is known of one spec.
#[derive(Debug)]
pub struct Evaluation {
    spec: Arc<PodSpec>,
    basis: Basis,
    locals: Vec<Local>,
    /// What its claims allow.
    pub claims: Claims,
    images: Vec<Option<ImageSummary>>,
    images_epoch: u64,
    hard: Option<Spread>,
    /// Soft spreading.
    pub soft: Option<Spread>,
    /// Pod affinity.
    pub interpod: Option<InterPod>,
    used: u64,
}

impl Evaluation {
    fn new(spec: Arc<PodSpec>, basis: Basis, cluster: &mut Cluster) -> Self {
        let unknown = Local { generation: 0, verdict: Verdict::Fits(Scores::default()) };
        Self {
            basis,
            locals: vec![unknown; cluster.nodes().len()],
            claims: cluster.storage.claims(&spec),
            images: local::image_summaries(&spec, cluster),
            images_epoch: cluster.images_epoch(),
            hard: Spread::hard(&spec, cluster),
            soft: Spread::soft(&spec, cluster),
            interpod: None,
            used: 0,
            spec,
        }
    }

    /// Brings everything that is counted over topologies up to date. Verdicts on single nodes follow when asked for.
    fn sync(&mut self, cluster: &mut Cluster) {
        let spec = &self.spec;
        if self.images_epoch != cluster.images_epoch() {
            self.images_epoch = cluster.images_epoch();
            let now = local::image_summaries(spec, cluster);
            if now != self.images {
                self.images = now;
                self.locals.iter_mut().for_each(|l| l.generation = 0);
            }
        }
        if let Some(s) = &mut self.hard {
            s.sync(spec, cluster);
        }
        if let Some(s) = &mut self.soft {
            s.sync(spec, cluster);
        }
        if self.interpod.is_none() && (spec.has_pod_affinity() || cluster.any_affinity()) {
            self.interpod = Some(InterPod::new(spec, cluster));
        }
        if let Some(p) = &mut self.interpod {
            p.sync(spec, cluster);
        }
    }

    /// The verdict on one node by the plugins that look at it alone.
    pub fn local(&mut self, cluster: &Cluster, i: usize) -> &Verdict {
        let state = &cluster.nodes()[i];
        if self.locals[i].generation != state.generation {
            let verdict = match local::refusal(&self.spec, state, volumes(&self.claims, cluster)) {
                Some(r) => Verdict::Refused(Box::new(r)),
                None => Verdict::Fits(local::scores(&self.spec, state, &self.images, cluster.nodes().len())),
            };
            self.locals[i] = Local { generation: state.generation, verdict };
        }
        &self.locals[i].verdict
    }

    /// The scores of a node that [`local`](Self::local) has just said fits.
    pub fn scores(&self, i: usize) -> Scores {
        match &self.locals[i].verdict {
            Verdict::Fits(s) => *s,
            Verdict::Refused(_) => Scores::default(),
        }
    }

    /// Why a node will not do, if it will not, by the filters that count over topologies.
    pub fn counted_refusal(&self, cluster: &Cluster, i: usize) -> Option<Refusal> {
        let spread = self.hard.as_ref().and_then(|s| s.refusal(i));
        spread.or_else(|| self.interpod.as_ref().and_then(|p| p.refusal(i, cluster.topologies())))
    }

    /// Why a node will not do if its pods were those of `state`. Leaves the counts as if they were: end a series of
    /// these with [`restore`](Self::restore).
    pub fn refusal_if(&mut self, cluster: &mut Cluster, i: usize, state: &NodeState) -> Option<Refusal> {
        if let Some(r) = local::refusal(&self.spec, state, volumes(&self.claims, cluster)) {
            return Some(r);
        }
        self.count_as(cluster, i, state);
        self.counted_refusal(cluster, i)
    }

    /// Counts a node as it is again.
    pub fn restore(&mut self, cluster: &mut Cluster, i: usize) {
        if self.hard.is_some() || self.interpod.is_some() {
            let state = cluster.nodes()[i].clone();
            self.count_as(cluster, i, &state);
        }
    }

    fn count_as(&mut self, cluster: &mut Cluster, i: usize, state: &NodeState) {
        let (nodes, topologies, namespaces) = cluster.parts();
        if let Some(s) = &mut self.hard {
            s.apply(&self.spec, i, state, topologies);
            s.settle();
        }
        if let Some(p) = &mut self.interpod {
            p.apply(&self.spec, i, state, nodes, topologies, namespaces);
        }
    }
}

fn volumes<'a>(claims: &'a Claims, cluster: &'a Cluster) -> Option<local::Volumes<'a>> {
    match claims {
        Claims::Bound(names) if !names.is_empty() => Some((&cluster.storage, names)),
        _ => None,
    }
}

/// The evaluations of the specs seen last.
#[derive(Debug, Default)]
pub struct Evaluations {
    /// By the address of the spec, which each holds.
    all: HashMap<usize, Evaluation>,
    uses: u64,
}

impl Evaluations {
    /// A spec's evaluation, up to date.
    pub fn get(&mut self, spec: &Arc<PodSpec>, cluster: &mut Cluster) -> &mut Evaluation {
        self.uses += 1;
        let at = Arc::as_ptr(spec) as usize;
        let basis = Basis::of(spec, cluster);
        if self.all.get(&at).is_some_and(|e| e.basis != basis) {
            self.all.remove(&at);
        }
        if self.all.len() >= EVALUATIONS_MAX && !self.all.contains_key(&at) {
            let oldest = self.all.iter().min_by_key(|(_, e)| e.used).map(|(at, _)| *at);
            oldest.and_then(|at| self.all.remove(&at));
        }
        let e = self.all.entry(at).or_insert_with(|| Evaluation::new(Arc::clone(spec), basis, cluster));
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
