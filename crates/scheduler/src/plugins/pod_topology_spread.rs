//! PodTopologySpread: counts of matching pods per domain, updated node by node, and what they mean for a pod. One table
//! is for the hard constraints of a spec and another for the soft ones (or the cluster's defaults).
use kelson_meta::LabelSelector;

use super::change::Change;
use super::plugin::{Counted, Plugin, PodChange, Prepared, SCORE_MAX};
use crate::cluster::topology::{NO_DOMAIN, Topologies};
use crate::cluster::{Cluster, NodeState};
use crate::reason::{Reason, Refusal};
use crate::view::{PodSpec, SpreadConstraint};

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// A constraint with its counts.
#[derive(Debug)]
struct Rule {
    constraint: SpreadConstraint,
    topology: usize,
    /// Whether the pod itself matches the constraint's selector.
    own: bool,
    hostname: bool,
    /// The number of matching pods, by domain.
    pods: Vec<i64>,
    /// The number of nodes that count, by domain.
    nodes: Vec<u32>,
    /// The lowest count of a domain with nodes, as of the last [`Spread::settle`].
    least: Option<i64>,
}

/// The contribution of one node to one constraint.
#[derive(Clone, Copy, Debug)]
struct ConstraintEntry {
    domain: u32,
    counts: bool,
    pods: i64,
}

const NONE: ConstraintEntry = ConstraintEntry { domain: NO_DOMAIN, counts: false, pods: 0 };

/// The plugin with its arguments; see the module.
#[derive(Clone, Copy, Debug)]
pub struct PodTopologySpread {
    /// Constraints for pods that have none, without selectors; `None` means the built-in ones.
    pub defaults: Option<&'static [SpreadConstraint]>,
}

impl PodTopologySpread {
    /// The arguments of the default profile.
    pub const DEFAULT: Self = Self { defaults: None };

    /// Returns the hard or the soft constraints of a spec: its own, or the default ones if it has none and a selector
    /// matches it.
    fn spread(&self, spec: &PodSpec, hard: bool, cluster: &mut Cluster) -> Option<Spread> {
        if !spec.spread.is_empty() {
            let rules = spec.spread.iter().filter(|c| c.hard == hard).cloned().collect();
            return Spread::new(spec, rules, true, cluster);
        }
        if self.defaults.map_or(hard, |all| all.iter().all(|c| c.hard != hard)) {
            return None;
        }
        let selector = cluster.workloads.default_selector(spec);
        if selector.is_everything() {
            return None;
        }
        let Some(given) = self.defaults else { return Spread::new(spec, usual(&selector), false, cluster) };
        let given = given.iter().filter(|c| c.hard == hard);
        let rules = given.map(|c| SpreadConstraint { selector: selector.clone(), ..c.clone() }).collect();
        Spread::new(spec, rules, true, cluster)
    }
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }

    fn prepare(&self, spec: &PodSpec, cluster: &mut Cluster) -> Prepared {
        let (hard, soft) = (self.spread(spec, true, cluster), self.spread(spec, false, cluster));
        if hard.is_none() && soft.is_none() {
            return Prepared::Nothing;
        }
        Prepared::Counted(Box::new(Both { hard, soft }))
    }

    /// Specs without constraints use the selectors of their namespace's workloads.
    fn epoch(&self, spec: &PodSpec, cluster: &Cluster) -> u64 {
        if spec.spread.is_empty() { cluster.workloads.epoch(&spec.namespace) } else { 0 }
    }

    fn weight(&self) -> i64 {
        2
    }

    fn requeues_on(&self, change: Change) -> bool {
        use Change::{AssignedPodAdd, AssignedPodDelete, AssignedPodUpdate, NodeDelete};
        matches!(change, NodeDelete | AssignedPodAdd | AssignedPodUpdate | AssignedPodDelete)
    }

    /// Useful is a node that starts or stops having all topology labels, or whose domains or taints changed.
    fn node_hint(&self, spec: &PodSpec, old: Option<&NodeState>, new: &NodeState) -> bool {
        let hard = || spec.spread.iter().filter(|c| c.hard);
        let value = |state: &NodeState, c: &SpreadConstraint| state.node.labels.get(&*c.topology_key).cloned();
        let counts = |state: &NodeState| hard().all(|c| value(state, c).is_some());
        let Some(old) = old else { return counts(new) };
        let moved = || hard().any(|c| value(old, c) != value(new, c)) || old.node.taints != new.node.taints;
        counts(old) != counts(new) || counts(new) && moved()
    }

    /// Useful is a pod that starts or stops matching a constraint.
    fn pod_hint(&self, spec: &PodSpec, change: PodChange<'_>) -> bool {
        // The selector of default constraints is only known when the pod is evaluated.
        if spec.spread.is_empty() {
            return true;
        }
        let counted = |c: &SpreadConstraint, pod: Option<&PodSpec>| {
            pod.is_some_and(|p| p.namespace == spec.namespace && c.selector.matches(&p.labels))
        };
        let mut hard = spec.spread.iter().filter(|c| c.hard);
        hard.any(|c| counted(c, change.old) != counted(c, change.new))
    }
}

/// Hard constraints reject nodes; soft constraints, or the cluster's defaults, score them.
#[derive(Debug)]
struct Both {
    hard: Option<Spread>,
    soft: Option<Spread>,
}

impl Counted for Both {
    fn sync(&mut self, spec: &PodSpec, cluster: &mut Cluster) -> bool {
        self.hard.iter_mut().chain(&mut self.soft).for_each(|s| s.sync(spec, cluster));
        true
    }

    fn count_as(&mut self, spec: &PodSpec, cluster: &mut Cluster, i: usize, state: &NodeState) {
        if let Some(s) = &mut self.hard {
            s.apply(spec, i, state, cluster.topologies());
            s.settle();
        }
    }

    fn filter(&self, _: &Cluster, i: usize) -> Option<Refusal> {
        self.hard.as_ref().and_then(|s| s.refusal(i))
    }

    fn scores(&self, _: &Cluster, nodes: &[u32], out: &mut Vec<i64>) -> bool {
        self.soft.as_ref().inspect(|s| s.scores(nodes, out)).is_some()
    }
}

/// The hard or the soft constraints of one spec.
#[derive(Debug)]
struct Spread {
    rules: Vec<Rule>,
    /// Whether nodes without all of the labels are excluded.
    all_labels: bool,
    generations: Vec<u64>,
    /// Contributions by node, then by constraint.
    entries: Vec<ConstraintEntry>,
}

/// The built-in default constraints: soft spreading over hosts and zones.
fn usual(selector: &LabelSelector) -> Vec<SpreadConstraint> {
    let rule = |key: &str, max_skew| SpreadConstraint {
        max_skew,
        topology_key: key.into(),
        hard: false,
        selector: selector.clone(),
        min_domains: 1,
        honor_affinity: true,
        honor_taints: false,
    };
    vec![rule(HOSTNAME, 3), rule(ZONE, 5)]
}

impl Spread {
    fn new(spec: &PodSpec, rules: Vec<SpreadConstraint>, all_labels: bool, cluster: &mut Cluster) -> Option<Self> {
        if rules.is_empty() {
            return None;
        }
        let (nodes, topologies, _) = cluster.parts();
        let count = nodes.len();
        let counted = rules.into_iter().map(|rule| Rule {
            topology: topologies.number(&rule.topology_key, nodes),
            own: rule.selector.matches(&spec.labels),
            hostname: &*rule.topology_key == HOSTNAME,
            pods: Vec::new(),
            nodes: Vec::new(),
            least: None,
            constraint: rule,
        });
        let rules: Vec<Rule> = counted.collect();
        let entries = vec![NONE; count * rules.len()];
        Some(Self { rules, all_labels, generations: vec![0; count], entries })
    }

    /// Counts the nodes that changed.
    fn sync(&mut self, spec: &PodSpec, cluster: &mut Cluster) {
        let (nodes, topologies, _) = cluster.parts();
        for (i, state) in nodes.iter().enumerate() {
            if self.generations[i] != state.generation {
                self.generations[i] = state.generation;
                self.apply(spec, i, state, topologies);
            }
        }
        self.settle();
    }

    /// Counts one node with the pods of `state`, replacing what was counted of it.
    fn apply(&mut self, spec: &PodSpec, i: usize, state: &NodeState, topologies: &Topologies) {
        let width = self.rules.len();
        let complete = self.rules.iter().all(|r| topologies.get(r.topology).of(i) != NO_DOMAIN);
        let takes_part = complete || !self.all_labels;
        let mut last = None;
        for (k, r) in self.rules.iter_mut().enumerate() {
            let entry = &mut self.entries[i * width + k];
            if entry.counts {
                let d = entry.domain as usize;
                r.pods[d] -= entry.pods;
                r.nodes[d] -= 1;
            }
            let domain = topologies.get(r.topology).of(i);
            let pods = match &last {
                // The default constraints share one selector.
                Some((selector, n)) if *selector == &r.constraint.selector => *n,
                _ => count(&r.constraint.selector, spec, state),
            };
            let included = (!r.constraint.honor_affinity || spec.node_matches(&state.node.name, &state.node.labels))
                && (!r.constraint.honor_taints || !spec.has_untolerated(&state.node.taints));
            *entry = ConstraintEntry { domain, counts: takes_part && included && domain != NO_DOMAIN, pods };
            if entry.counts {
                let d = domain as usize;
                if r.pods.len() <= d {
                    r.pods.resize(d + 1, 0);
                    r.nodes.resize(d + 1, 0);
                }
                r.pods[d] += pods;
                r.nodes[d] += 1;
            }
            last = Some((&r.constraint.selector, pods));
        }
    }

    /// Computes the lowest counts; must be called after [`apply`](Self::apply) and before [`refusal`](Self::refusal).
    fn settle(&mut self) {
        for r in self.rules.iter_mut().filter(|r| r.constraint.hard) {
            let mut domains = 0;
            let mut least = None;
            for (pods, _) in r.pods.iter().zip(&r.nodes).filter(|(_, nodes)| **nodes > 0) {
                domains += 1;
                least = Some(least.map_or(*pods, |l: i64| l.min(*pods)));
            }
            r.least = if domains < r.constraint.min_domains { Some(0) } else { least };
        }
    }

    /// Returns why a pod of this spec must not be on a node.
    fn refusal(&self, i: usize) -> Option<Refusal> {
        let width = self.rules.len();
        for (r, entry) in self.rules.iter().zip(&self.entries[i * width..]) {
            if entry.domain == NO_DOMAIN {
                return Some(Refusal::one(false, Reason::SPREAD_LABEL));
            }
            let here = r.pods.get(entry.domain as usize).copied().unwrap_or(0);
            let skew = here + i64::from(r.own) - r.least.unwrap_or(i64::from(i32::MAX));
            if skew > r.constraint.max_skew {
                return Some(Refusal::one(true, Reason::SPREAD));
            }
        }
        None
    }

    /// Writes the normalized scores (0 to 100) of these nodes to `out`, in their order.
    fn scores(&self, nodes: &[u32], out: &mut Vec<i64>) {
        const IGNORED: i64 = -1;
        let width = self.rules.len();
        let of = |i: u32| &self.entries[i as usize * width..(i as usize + 1) * width];
        let ignored = |i: u32| self.all_labels && of(i).iter().any(|e| e.domain == NO_DOMAIN);
        let weights: Vec<f64> = (0..width).map(|k| self.weight(k, nodes, &of, &ignored)).collect();
        out.clear();
        let (mut min, mut max) = (i64::MAX, 0);
        for &n in nodes {
            if ignored(n) {
                out.push(IGNORED);
                continue;
            }
            let mut score = 0.0;
            for ((r, e), weight) in self.rules.iter().zip(of(n)).zip(&weights) {
                if e.domain == NO_DOMAIN {
                    continue;
                }
                let pods = if r.hostname { e.pods } else { r.pods.get(e.domain as usize).copied().unwrap_or(0) };
                score += pods as f64 * weight + (r.constraint.max_skew - 1) as f64;
            }
            let score = score.round() as i64;
            min = min.min(score);
            max = max.max(score);
            out.push(score);
        }
        for s in out.iter_mut() {
            *s = match *s {
                IGNORED => 0,
                _ if max == 0 => SCORE_MAX,
                s => SCORE_MAX * (max + min - s) / max,
            };
        }
    }

    /// Returns the weight of a constraint. It grows with the number of domains, so that small counts in many domains
    /// still matter.
    fn weight<'a>(
        &'a self,
        k: usize,
        nodes: &[u32],
        of: &impl Fn(u32) -> &'a [ConstraintEntry],
        ignored: &impl Fn(u32) -> bool,
    ) -> f64 {
        let taking_part = nodes.iter().filter(|n| !ignored(**n));
        let size = if self.rules[k].hostname {
            taking_part.count()
        } else {
            let domain = |n: &u32| of(*n)[k].domain;
            let top = nodes.iter().map(domain).filter(|d| *d != NO_DOMAIN).max().unwrap_or(0) as usize;
            // Nodes without the label share the last index: upstream counts them as one domain, too.
            let mut seen = vec![false; top + 2];
            let mut distinct = 0;
            for n in taking_part {
                let slot = (domain(n) as usize).min(top + 1);
                distinct += usize::from(!std::mem::replace(&mut seen[slot], true));
            }
            distinct
        };
        ((size + 2) as f64).ln()
    }
}

/// Counts the pods on a node that a selector matches, of the pod's namespace and not terminating.
fn count(selector: &LabelSelector, spec: &PodSpec, state: &NodeState) -> i64 {
    if selector.is_everything() {
        return 0;
    }
    let mut last: Option<(*const PodSpec, bool)> = None;
    let mut n = 0;
    for p in state.pods.iter().filter(|p| !p.deleting) {
        let at = std::sync::Arc::as_ptr(&p.spec);
        let yes = match last {
            // Pods of one template share their spec, and are often neighbours.
            Some((seen, yes)) if seen == at => yes,
            _ => p.spec.namespace == spec.namespace && selector.matches(&p.spec.labels),
        };
        last = Some((at, yes));
        n += i64::from(yes);
    }
    n
}
