//! NodeResourcesFit: the requests on a node must not exceed its allocatable resources. By default emptier nodes score
//! higher (LeastAllocated).
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

/// The strategy for scoring a node by its use (`NodeResourcesFitArgs.scoringStrategy`).
#[derive(Clone, Copy, Debug)]
pub enum Strategy {
    /// Less used nodes score higher.
    LeastAllocated,
    /// More used nodes score higher.
    MostAllocated,
    /// Linear interpolation between these points of used percent and score (0 to 10), by ascending percent.
    RequestedToCapacityRatio(&'static [(i64, i64)]),
}

/// The plugin with its arguments; see the module.
#[derive(Clone, Copy, Debug)]
pub struct NodeResourcesFit {
    /// The strategy for scoring nodes.
    pub strategy: Strategy,
    /// The scored resources with their weights.
    pub resources: &'static [(&'static str, i64)],
    /// Extended resources that are not checked.
    pub ignored: &'static [&'static str],
    /// Groups of extended resources that are not checked: the part before the slash.
    pub ignored_groups: &'static [&'static str],
}

impl NodeResourcesFit {
    /// The arguments of the default profile.
    pub const DEFAULT: Self = Self {
        strategy: Strategy::LeastAllocated,
        resources: &[("cpu", 1), ("memory", 1)],
        ignored: &[],
        ignored_groups: &[],
    };

    /// Returns the resources of which a node has too little. Extended resources that drivers provide on the node are
    /// not checked here.
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
            // A resource with a score of zero does not count, as upstream.
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

/// Returns what drivers offer on a node of an extended resource that no device plugin provides there.
pub(super) type Stocks<'a> = &'a dyn Fn(&str) -> Option<Stock>;

/// Returns how much of an extended resource is used on a node, and how much there is.
pub(super) fn extended_amounts(name: &str, state: &NodeState, stocks: Stocks<'_>) -> (i64, i64) {
    let own = (state.requested.scalar(name), state.node.allocatable.scalar(name));
    match own {
        (_, 0) => stocks(name).map_or(own, |stock| (stock.given, stock.devices)),
        own => own,
    }
}

/// Returns how much of a resource would be used with the pod, and how much there is; `None` when the resource does not
/// count for this pod.
fn amounts(name: &str, spec: &PodSpec, state: &NodeState, stocks: Stocks<'_>) -> Option<(i64, i64)> {
    let all = &state.node.allocatable;
    let (used, all) = match name {
        "cpu" => (state.assumed_cpu + spec.requests.assumed_cpu, all.cpu),
        "memory" => (state.assumed_memory + spec.requests.assumed_memory, all.memory),
        "ephemeral-storage" => (state.requested.ephemeral + spec.requests.asked.ephemeral, all.ephemeral),
        // A resource that the pod does not request does not count.
        _ if spec.requests.asked.scalar(name) == 0 => return None,
        _ => {
            let (used, all) = extended_amounts(name, state, stocks);
            (used + spec.requests.asked.scalar(name), all)
        }
    };
    (all > 0).then_some((used, all))
}

/// Returns the value at `x` of the line through these points, constant beyond its ends.
fn height(points: &[(i64, i64)], x: i64) -> i64 {
    let Some(after) = points.iter().position(|(at, _)| x <= *at) else { return points.last().map_or(0, |(_, y)| *y) };
    let (x1, y1) = points[after];
    if after == 0 {
        return y1;
    }
    let (x0, y0) = points[after - 1];
    y0 + (y1 - y0) * (x - x0) / (x1 - x0).max(1)
}

/// The maximum score of a configured point.
const POINT_MAX: i64 = 10;

impl Strategy {
    /// Returns the score of one resource.
    fn score(self, used: i64, all: i64) -> i64 {
        match self {
            // Memory in bytes times one hundred does not overflow: an i64 has room for 80 PiB of it.
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

    /// Whether drivers provide a resource is looked up in the cluster where classes may map to one ([`Backed`]).
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

    /// Useful is more of a resource that the pod requests.
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

    /// Scores a node. For a pod with extended resources, [`Backed`] scores with the devices that drivers offer.
    fn score(&self, spec: &PodSpec, state: &NodeState) -> i64 {
        if spec.extended.is_empty() { self.points(spec, state, &|_| None) } else { 0 }
    }

    fn weight(&self) -> i64 {
        1
    }
}

/// A pod's requests, and those of them that drivers may provide instead of a device plugin.
#[derive(Debug)]
struct Backed {
    fit: NodeResourcesFit,
    want: Capacity,
    extended: Option<ExtendedNeeds>,
    /// The epoch of the devices that scores were computed with.
    seen: u64,
}

impl PerNode for Backed {
    /// Allocations of devices only matter if a scored resource comes from devices.
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
