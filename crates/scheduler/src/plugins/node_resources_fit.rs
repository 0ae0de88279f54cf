//! NodeResourcesFit: a node takes no more than it has to give; by default emptier nodes are more welcome (LeastAllocated).
use std::borrow::Cow;

use kelson_devices::allocate::Stock;
use kelson_devices::names;
use kelson_meta::ObjectKey;

use super::change::Change;
use super::plugin::{PerNode, Plugin, Prepared, SCORE_MAX};
use crate::cluster::extended::ExtendedNeeds;
use crate::cluster::{Cluster, NodeState};
use crate::reason::{Reason, Refusal};
use crate::view::{Capacity, Node, PodSpec};

/// How welcome a node is by how much of it is used (`NodeResourcesFitArgs.scoringStrategy`).
#[derive(Clone, Copy, Debug)]
pub enum Strategy {
    /// The emptier, the better.
    LeastAllocated,
    /// The fuller, the better.
    MostAllocated,
    /// By a line through these points: used percent, and 0 to 10; percents ascend.
    RequestedToCapacityRatio(&'static [(i64, i64)]),
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct NodeResourcesFit {
    /// How nodes are scored.
    pub strategy: Strategy,
    /// Resources that score, and how much each counts.
    pub resources: &'static [(&'static str, i64)],
    /// Extended resources that nobody looks at, and groups of them.
    pub ignored: &'static [&'static str],
    /// The part before the slash of those that nobody looks at.
    pub ignored_groups: &'static [&'static str],
}

impl NodeResourcesFit {
    /// As in the default profile.
    pub const DEFAULT: Self = Self {
        strategy: Strategy::LeastAllocated,
        resources: &[("cpu", 1), ("memory", 1)],
        ignored: &[],
        ignored_groups: &[],
    };

    /// What a node has too little of; resources that its drivers of devices are asked for are not its own to give.
    fn short(&self, want: &Capacity, state: &NodeState, extended: Option<&ExtendedNeeds>) -> Option<Refusal> {
        let (node, used) = (&state.node, &state.requested);
        let mut reasons = Vec::new();
        let mut preemptible = true;
        if state.pods.len() as i64 + 1 > node.pods_max {
            reasons.push(Reason::TOO_MANY_PODS);
        }
        let mut check = |want: i64, all: i64, used: i64, reason: &dyn Fn() -> Reason| {
            if want > 0 && want > all - used {
                preemptible &= want <= all;
                reasons.push(reason());
            }
        };
        check(want.cpu, node.allocatable.cpu, used.cpu, &|| Reason::CPU);
        check(want.memory, node.allocatable.memory, used.memory, &|| Reason::MEMORY);
        check(want.ephemeral, node.allocatable.ephemeral, used.ephemeral, &|| Reason::EPHEMERAL);
        let own = |name: &str| !self.is_ignored(name) && !extended.is_some_and(|e| e.is_of_drivers(name, node));
        for (name, n) in want.scalars.iter().filter(|(name, _)| own(name)) {
            let reason = || Reason(Cow::Owned(format!("Insufficient {name}")));
            check(*n, node.allocatable.scalar(name), used.scalar(name), &reason);
        }
        (!reasons.is_empty()).then(|| Refusal::all(preemptible, reasons))
    }

    fn points(&self, spec: &PodSpec, state: &NodeState, stocks: Stocks<'_>) -> i64 {
        let (mut sum, mut weights) = (0, 0);
        for (name, weight) in self.resources {
            let Some((used, all)) = amounts(name, spec, state, stocks) else { continue };
            let score = self.strategy.score(used, all);
            // A resource without points says nothing of the node, as upstream.
            if matches!(self.strategy, Strategy::RequestedToCapacityRatio(_)) && score == 0 {
                continue;
            }
            sum += score * weight;
            weights += weight;
        }
        match self.strategy {
            _ if weights == 0 => 0,
            Strategy::RequestedToCapacityRatio(_) => (sum * 2 + weights) / (weights * 2),
            _ => sum / weights,
        }
    }

    fn is_ignored(&self, name: &str) -> bool {
        self.ignored.contains(&name) || name.split_once('/').is_some_and(|(g, _)| self.ignored_groups.contains(&g))
    }
}

/// What drivers have on a node of an extended resource that no plugin has there.
pub(super) type Stocks<'a> = &'a dyn Fn(&str) -> Option<Stock>;

/// How much of an extended resource is used on a node, and how much there is.
pub(super) fn extended_amounts(name: &str, state: &NodeState, stocks: Stocks<'_>) -> (i64, i64) {
    let own = (state.requested.scalar(name), state.node.allocatable.scalar(name));
    match own {
        (_, 0) => stocks(name).map_or(own, |stock| (stock.given, stock.devices)),
        own => own,
    }
}

/// How much of a resource would be used with the pod, and how much there is; `None`: it does not count for this pod.
fn amounts(name: &str, spec: &PodSpec, state: &NodeState, stocks: Stocks<'_>) -> Option<(i64, i64)> {
    let all = &state.node.allocatable;
    let (used, all) = match name {
        "cpu" => (state.assumed_cpu + spec.requests.assumed_cpu, all.cpu),
        "memory" => (state.assumed_memory + spec.requests.assumed_memory, all.memory),
        "ephemeral-storage" => (state.requested.ephemeral + spec.requests.asked.ephemeral, all.ephemeral),
        // Where the pod does not ask for it, it says nothing of the node.
        _ if spec.requests.asked.scalar(name) == 0 => return None,
        _ => {
            let (used, all) = extended_amounts(name, state, stocks);
            (used + spec.requests.asked.scalar(name), all)
        }
    };
    (all > 0).then_some((used, all))
}

/// The height at `x` of the line through these points, level beyond its ends.
fn height(points: &[(i64, i64)], x: i64) -> i64 {
    let Some(after) = points.iter().position(|(at, _)| x <= *at) else { return points.last().map_or(0, |(_, y)| *y) };
    let (x1, y1) = points[after];
    if after == 0 {
        return y1;
    }
    let (x0, y0) = points[after - 1];
    y0 + (y1 - y0) * (x - x0) / (x1 - x0).max(1)
}

/// Points of the configuration are 0 to this.
const POINT_MAX: i64 = 10;

impl Strategy {
    /// The score of one resource.
    fn score(self, used: i64, all: i64) -> i64 {
        match self {
            // Memory in bytes times a hundred still fits: an i64 holds 80 PiB of it.
            Self::LeastAllocated if used <= all => (all - used).saturating_mul(SCORE_MAX) / all,
            Self::LeastAllocated => 0,
            Self::MostAllocated => used.min(all).saturating_mul(SCORE_MAX) / all,
            Self::RequestedToCapacityRatio(points) => {
                let percent = if used > all { 100 } else { used.saturating_mul(100) / all };
                height(points, percent) * (SCORE_MAX / POINT_MAX)
            }
        }
    }
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    /// Which resources are whose is asked of the cluster where classes of devices may stand for some ([`Backed`]).
    fn prepare(&self, spec: &PodSpec, cluster: &mut Cluster) -> Prepared {
        if spec.extended.is_empty() {
            return Prepared::Nothing;
        }
        let extended = cluster.devices.extended_needs(spec);
        let seen = cluster.devices.epoch();
        Prepared::PerNode(Box::new(Backed { fit: *self, want: spec.requests.asked.clone(), extended, seen }))
    }

    fn epoch(&self, spec: &PodSpec, cluster: &Cluster) -> u64 {
        if spec.extended.is_empty() { 0 } else { cluster.devices.class_epoch() }
    }

    fn filter(&self, spec: &PodSpec, state: &NodeState) -> Option<Refusal> {
        if spec.extended.is_empty() { self.short(&spec.requests.asked, state, None) } else { None }
    }

    fn judges_nodes(&self) -> bool {
        true
    }

    fn counts_room(&self) -> bool {
        true
    }

    fn never_fits(&self, spec: &PodSpec, state: &NodeState) -> bool {
        let (want, all) = (&spec.requests.asked, &state.node.allocatable);
        let of_drivers = |name: &str| all.scalar(name) == 0 && spec.extended.iter().any(|ask| *ask.resource == *name);
        want.cpu > all.cpu
            || want.memory > all.memory
            || want.ephemeral > all.ephemeral
            || want.scalars.iter().any(|(name, n)| *n > all.scalar(name) && !self.is_ignored(name) && !of_drivers(name))
    }

    fn requeues_on(&self, change: Change) -> bool {
        matches!(change, Change::DeviceClassAdd | Change::DeviceClassUpdate)
    }

    fn hint(&self, spec: &PodSpec, _: Change, about: &ObjectKey) -> bool {
        let named = |name: &str| name.strip_prefix(names::IMPLICIT_EXTENDED_RESOURCE).is_none_or(|c| c == about.name);
        spec.extended.iter().any(|ask| named(&ask.resource))
    }

    /// Of use is more of something that the pod asks for.
    fn node_hint(&self, spec: &PodSpec, old: Option<&NodeState>, new: &NodeState) -> bool {
        let (want, all) = (&spec.requests.asked, &new.node.allocatable);
        let grew = |old: &Node| {
            let more = |want: i64, was: i64, is: i64| want > 0 && is > was;
            let was = &old.allocatable;
            new.node.pods_max > old.pods_max
                || more(want.cpu, was.cpu, all.cpu)
                || more(want.memory, was.memory, all.memory)
                || more(want.ephemeral, was.ephemeral, all.ephemeral)
                || want.scalars.iter().any(|(name, n)| more(*n, was.scalar(name), all.scalar(name)))
        };
        old.is_none_or(|old| grew(&old.node))
    }

    /// Where the pod asks for extended resources, [`Backed`] knows what drivers have of them.
    fn score(&self, spec: &PodSpec, state: &NodeState) -> i64 {
        if spec.extended.is_empty() { self.points(spec, state, &|_| None) } else { 0 }
    }

    fn weight(&self) -> i64 {
        1
    }
}

/// A pod's requests, and those of them that drivers of devices may fulfil in the place of a plugin.
#[derive(Debug)]
struct Backed {
    fit: NodeResourcesFit,
    want: Capacity,
    extended: Option<ExtendedNeeds>,
    /// The state of devices that scores were reckoned by.
    seen: u64,
}

impl PerNode for Backed {
    /// What is given of devices counts only where their resource scores.
    fn refresh(&mut self, spec: &PodSpec, cluster: &Cluster) -> bool {
        let scores = |name: &str| self.fit.resources.iter().any(|(n, _)| *n == name);
        let backed = self.extended.is_some() && spec.extended.iter().any(|ask| scores(&ask.resource));
        let seen = std::mem::replace(&mut self.seen, cluster.devices.epoch());
        backed && seen != self.seen
    }

    fn score(&self, spec: &PodSpec, cluster: &Cluster, state: &NodeState) -> i64 {
        self.fit.points(spec, state, &|resource| cluster.devices.stock(resource, &state.node))
    }

    fn filter(&self, _: &Cluster, state: &NodeState) -> Option<Refusal> {
        self.fit.short(&self.want, state, self.extended.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies() {
        let packing: &[(i64, i64)] = &[(0, 0), (50, 4), (100, 10)];
        for (used, least, most, ratio) in
            [(0, 100, 0, 0), (25, 75, 25, 20), (50, 50, 50, 40), (100, 0, 100, 100), (120, 0, 100, 100)]
        {
            assert_eq!(Strategy::LeastAllocated.score(used, 100), least, "{used}");
            assert_eq!(Strategy::MostAllocated.score(used, 100), most, "{used}");
            assert_eq!(Strategy::RequestedToCapacityRatio(packing).score(used, 100), ratio, "{used}");
        }
        assert_eq!((height(&[(20, 3)], 0), height(&[(20, 3)], 90), height(&[], 1)), (3, 3, 0));
    }
}
