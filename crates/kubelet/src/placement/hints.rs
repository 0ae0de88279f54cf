//! NUMA hints of a container's resources, and their merge into one (upstream: `topologymanager/policy.go`). Pure.
use std::collections::BTreeMap;

use super::layout::MemoryNode;
use super::numa::NodeMask;
use crate::config::placement::{AlignmentPolicy, AlignmentScope, PlacementConfig};

/// A set of NUMA nodes from which a request could be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumaHint {
    /// The NUMA nodes; `None` means any.
    pub nodes: Option<NodeMask>,
    /// Whether the nodes are preferred: there is no better set.
    pub preferred: bool,
}

impl NumaHint {
    /// Any NUMA node, without preference.
    pub const ANYWHERE: Self = Self { nodes: None, preferred: true };
}

/// Hints by resource: `None` if any NUMA node is suitable, empty if none is.
pub type ResourceHints = BTreeMap<String, Option<Vec<NumaHint>>>;

/// Merges hints according to the topology manager's policy.
#[derive(Clone, Debug)]
pub struct Alignment {
    policy: AlignmentPolicy,
    scope: AlignmentScope,
    prefers_closest: bool,
    nodes: Vec<MemoryNode>,
    all: NodeMask,
}

impl Alignment {
    /// Creates it for a machine with these NUMA nodes; `None` if the policy is `none`.
    ///
    /// # Errors
    /// The machine has too many NUMA nodes, or does not report distances that the options need.
    pub fn of(config: &PlacementConfig, nodes: &[MemoryNode]) -> Result<Option<Self>, String> {
        if config.alignment == AlignmentPolicy::None {
            return Ok(None);
        }
        let max = config.nodes_max;
        if u32::try_from(nodes.len()).unwrap_or(u32::MAX) > max {
            return Err(format!("unsupported on machines with more than {max} NUMA Nodes"));
        }
        if config.prefers_closest && nodes.iter().any(|n| n.distances.len() < nodes.len()) {
            return Err("cannot discover NUMA topology: the machine reports no distances between NUMA nodes".into());
        }
        Ok(Some(Self {
            policy: config.alignment,
            scope: config.scope,
            prefers_closest: config.prefers_closest && config.alignment != AlignmentPolicy::SingleNumaNode,
            nodes: nodes.to_vec(),
            all: NodeMask::of(nodes.iter().map(|n| n.id)),
        }))
    }

    /// The unit of alignment: container or pod.
    pub fn scope(&self) -> AlignmentScope {
        self.scope
    }

    /// Returns whether admitted containers always have their resources on one NUMA node.
    pub fn is_guaranteed(&self) -> bool {
        self.policy == AlignmentPolicy::SingleNumaNode
    }

    /// Returns the best hint for all resources, and whether the policy admits it.
    pub fn merge(&self, wishes: &[ResourceHints]) -> (NumaHint, bool) {
        let mut lists: Vec<Vec<NumaHint>> = Vec::new();
        for of_one in wishes {
            if of_one.is_empty() {
                lists.push(vec![NumaHint::ANYWHERE]);
            }
            lists.extend(of_one.values().map(|hints| match hints {
                None => vec![NumaHint::ANYWHERE],
                Some(hints) if hints.is_empty() => vec![NumaHint { nodes: None, preferred: false }],
                Some(hints) => hints.clone(),
            }));
        }
        if self.policy == AlignmentPolicy::SingleNumaNode {
            let fits = |h: &NumaHint| h.preferred && h.nodes.is_none_or(|n| n.count() == 1);
            lists.iter_mut().for_each(|hints| hints.retain(fits));
        }
        let mut best = self.best(&lists);
        if self.policy == AlignmentPolicy::SingleNumaNode && best.nodes == Some(self.all) {
            best.nodes = None;
        }
        (best, self.policy == AlignmentPolicy::BestEffort || best.preferred)
    }

    fn best(&self, lists: &[Vec<NumaHint>]) -> NumaHint {
        let narrowest = |hints: &Vec<NumaHint>| hints.iter().filter_map(|h| h.nodes.map(NodeMask::count)).min();
        let least = lists.iter().filter_map(narrowest).max().unwrap_or(0);
        let mut best: Option<NumaHint> = None;
        each_choice(lists, &mut Vec::new(), &mut |chosen| {
            let found = self.merged(chosen);
            if found.nodes.is_some_and(|n| n.count() > 0) {
                best = Some(best.map_or(found, |best| self.better(best, found, least)));
            }
        });
        best.unwrap_or(NumaHint { nodes: Some(self.all), preferred: false })
    }

    /// Intersection of the hints. It is preferred only if all of them are preferred and equal.
    fn merged(&self, chosen: &[NumaHint]) -> NumaHint {
        let mut places = chosen.iter().filter_map(|h| h.nodes);
        let first = places.clone().next();
        let preferred = chosen.iter().all(|h| h.preferred) && places.clone().all(|n| Some(n) == first);
        let nodes = places.by_ref().fold(self.all, NodeMask::and);
        NumaHint { nodes: Some(nodes), preferred }
    }

    /// Returns the better of two hints. `least` is the maximum, over the resources, of the minimum number of NUMA nodes.
    fn better(&self, now: NumaHint, other: NumaHint, least: u32) -> NumaHint {
        if now.preferred != other.preferred {
            return if now.preferred { now } else { other };
        }
        let count = |h: NumaHint| h.nodes.map_or(0, NodeMask::count);
        let (of_now, of_other) = (count(now), count(other));
        if now.preferred || of_now > least {
            return self.nearer(now, other);
        }
        if of_now == least {
            return if of_other == least { self.nearer(now, other) } else { now };
        }
        match () {
            () if of_other > least => now,
            () if of_other == least || of_other > of_now => other,
            () if of_other < of_now => now,
            () => self.nearer(now, other),
        }
    }

    fn nearer(&self, now: NumaHint, other: NumaHint) -> NumaHint {
        let (Some(a), Some(b)) = (now.nodes, other.nodes) else { return now };
        let is_other = match self.prefers_closest && a.count() == b.count() {
            true => (self.distance(b), b) < (self.distance(a), a),
            false => b.is_narrower_than(a),
        };
        if is_other { other } else { now }
    }

    /// Average distance between these NUMA nodes, in thousandths.
    fn distance(&self, mask: NodeMask) -> u64 {
        let inside: Vec<&MemoryNode> = self.nodes.iter().filter(|n| mask.has(n.id)).collect();
        let far = |a: &MemoryNode, b: &MemoryNode| a.distances.get(b.id as usize).copied().unwrap_or(0);
        let sum: u64 = inside.iter().map(|a| inside.iter().map(|b| far(a, b)).sum::<u64>()).sum();
        let count = u64::try_from(inside.len() * inside.len()).unwrap_or(u64::MAX).max(1);
        sum.saturating_mul(1000) / count
    }
}

fn each_choice(lists: &[Vec<NumaHint>], chosen: &mut Vec<NumaHint>, each: &mut impl FnMut(&[NumaHint])) {
    let Some((first, others)) = lists.split_first() else { return each(chosen) };
    for hint in first {
        chosen.push(*hint);
        each_choice(others, chosen, each);
        chosen.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::layout::machine;

    fn alignment(alignment: AlignmentPolicy, prefers_closest: bool) -> Alignment {
        let config = PlacementConfig { alignment, prefers_closest, ..PlacementConfig::default() };
        Alignment::of(&config, &machine(2, 1, 1, 1).nodes).expect("two parts").expect("a policy")
    }

    /// `0 1! 01` are hints for node 0, node 1 (preferred) and both; `-` means no preference, and an empty string that no node is suitable.
    fn wish(text: &str) -> ResourceHints {
        let hint = |word: &str| NumaHint {
            nodes: Some(NodeMask::of(word.trim_end_matches('!').chars().filter_map(|c| c.to_digit(10)))),
            preferred: word.ends_with('!'),
        };
        let hints = (text != "-").then(|| text.split_whitespace().map(hint).collect());
        ResourceHints::from([("r".to_owned(), hints)])
    }

    fn check(policy: AlignmentPolicy, wishes: &[&str], expected: &str) {
        let wishes: Vec<ResourceHints> = wishes.iter().map(|w| wish(w)).collect();
        let (hint, admitted) = alignment(policy, false).merge(&wishes);
        let nodes = hint.nodes.map_or("-".to_owned(), |n| n.nodes().iter().map(u32::to_string).collect());
        let text = format!(
            "{nodes}{} {}",
            if hint.preferred { "!" } else { "" },
            if admitted { "admitted" } else { "refused" }
        );
        assert_eq!(text, expected, "{policy:?} {wishes:?}");
    }

    #[test]
    fn hints_are_merged() {
        use AlignmentPolicy::{BestEffort, Restricted, SingleNumaNode};
        let all = "0! 1! 01";
        for (wishes, best, restricted, single) in [
            (vec![], "01! admitted", "01! admitted", "-! admitted"),
            (vec!["-"], "01! admitted", "01! admitted", "-! admitted"),
            (vec![all], "0! admitted", "0! admitted", "0! admitted"),
            (vec![all, "1! 01"], "1! admitted", "1! admitted", "1! admitted"),
            (vec!["0! 01", "1! 01"], "0 admitted", "0 refused", "- refused"),
            (vec!["01!", "01!"], "01! admitted", "01! admitted", "- refused"),
            (vec!["01!", all], "01 admitted", "01 refused", "- refused"),
            (vec!["01"], "01 admitted", "01 refused", "- refused"),
            (vec![""], "01 admitted", "01 refused", "- refused"),
            (vec!["", all], "0 admitted", "0 refused", "- refused"),
        ] {
            check(BestEffort, &wishes, best);
            check(Restricted, &wishes, restricted);
            check(SingleNumaNode, &wishes, single);
        }
    }

    #[test]
    fn prefer_closest_numa_nodes() {
        let config = PlacementConfig {
            alignment: AlignmentPolicy::BestEffort,
            prefers_closest: true,
            ..PlacementConfig::default()
        };
        let nodes = machine(2, 2, 1, 1).nodes;
        let closest = Alignment::of(&config, &nodes).expect("four parts").expect("a policy");
        let plain = Alignment::of(&PlacementConfig { prefers_closest: false, ..config.clone() }, &nodes);
        let plain = plain.expect("four parts").expect("a policy");
        let wishes = [wish("12! 23!")];
        assert_eq!(closest.merge(&wishes).0.nodes, Some(NodeMask::of([2, 3])), "one socket");
        assert_eq!(plain.merge(&wishes).0.nodes, Some(NodeMask::of([1, 2])), "the lower numbers");
        let few = PlacementConfig { nodes_max: 3, ..config };
        assert!(Alignment::of(&few, &nodes).is_err_and(|e| e.contains("more than 3 NUMA Nodes")));
    }
}
