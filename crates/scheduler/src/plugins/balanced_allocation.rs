//! NodeResourcesBalancedAllocation: prefers nodes whose resources (by default CPU and memory) are used more evenly with
//! the pod.
use super::node_resources_fit::{Stocks, extended_amounts};
use super::plugin::{PerNode, Plugin, Prepared, SCORE_MAX};
use crate::cluster::{Cluster, NodeState};
use crate::view::PodSpec;

/// The plugin with its arguments; see the module.
#[derive(Clone, Copy, Debug)]
pub struct NodeResourcesBalancedAllocation {
    /// The resources whose use should be balanced.
    pub resources: &'static [&'static str],
}

impl NodeResourcesBalancedAllocation {
    /// The arguments of the default profile.
    pub const DEFAULT: Self = Self { resources: &["cpu", "memory"] };
}

/// Returns how evenly resources are used, from the used fraction of each: 100 when all are equal.
fn evenness(parts: impl Iterator<Item = f64> + Clone) -> i64 {
    let n = parts.clone().count() as f64;
    let mean = parts.clone().sum::<f64>() / n.max(1.0);
    let deviation = if n == 2.0 {
        // For two values this equals the standard deviation, without the rounding error of a square root.
        parts.map(|part| (part - mean).abs()).sum::<f64>() / 2.0
    } else {
        (parts.map(|part| (part - mean) * (part - mean)).sum::<f64>() / n.max(1.0)).sqrt()
    };
    ((1.0 - deviation) * SCORE_MAX as f64) as i64
}

impl NodeResourcesBalancedAllocation {
    /// Reports whether a scored resource may be provided by drivers instead of a device plugin.
    fn asks_drivers(&self, spec: &PodSpec) -> bool {
        spec.extended.iter().any(|ask| self.resources.contains(&&*ask.resource))
    }

    /// Returns the balance with the pod compared to the balance without it: 50 to 100, 75 when it does not change.
    fn points(&self, spec: &PodSpec, state: &NodeState, stocks: Stocks<'_>) -> i64 {
        let want = &spec.requests.asked;
        if self.resources.iter().all(|name| want.amount(name) == 0) {
            return 0;
        }
        // An extended resource that the pod does not request says nothing about the node.
        let is_own = |name: &str| matches!(name, "cpu" | "memory" | "ephemeral-storage");
        let part = |name: &str, with: i64| {
            let (used, all) = match is_own(name) {
                true => (state.requested.amount(name), state.node.allocatable.amount(name)),
                false if want.amount(name) == 0 => return None,
                false => extended_amounts(name, state, stocks),
            };
            (all != 0).then(|| ((used + with) as f64 / all as f64).min(1.0))
        };
        let with = evenness(self.resources.iter().filter_map(|name| part(name, want.amount(name))));
        let without = evenness(self.resources.iter().filter_map(|name| part(name, 0)));
        SCORE_MAX / 2 + (SCORE_MAX / 2 + with - without) / 2
    }
}

impl Plugin for NodeResourcesBalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn prepare(&self, spec: &PodSpec, cluster: &mut Cluster) -> Prepared {
        match self.asks_drivers(spec) {
            true => Prepared::PerNode(Box::new(BackedBalance { balance: *self, seen: cluster.devices.epoch() })),
            false => Prepared::Nothing,
        }
    }

    fn score(&self, spec: &PodSpec, state: &NodeState) -> i64 {
        if self.asks_drivers(spec) { 0 } else { self.points(spec, state, &|_| None) }
    }

    fn weight(&self) -> i64 {
        1
    }
}

/// Scores that depend on what device drivers offer.
#[derive(Debug)]
struct BackedBalance {
    balance: NodeResourcesBalancedAllocation,
    /// The epoch of the devices that scores were computed with.
    seen: u64,
}

impl PerNode for BackedBalance {
    fn refresh(&mut self, _: &PodSpec, cluster: &Cluster) -> bool {
        std::mem::replace(&mut self.seen, cluster.devices.epoch()) != cluster.devices.epoch()
    }

    fn score(&self, spec: &PodSpec, cluster: &Cluster, state: &NodeState) -> i64 {
        self.balance.points(spec, state, &|resource| cluster.devices.stock(resource, &state.node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evenness_of_parts() {
        for (parts, expected) in [
            (&[][..], 100),
            (&[0.3], 100),
            (&[0.25, 0.75], 75),
            (&[0.0, 1.0], 50),
            (&[0.5, 0.5, 0.5], 100),
            (&[0.0, 0.5, 1.0], 59),
        ] {
            assert_eq!(evenness(parts.iter().copied()), expected, "{parts:?}");
        }
    }
}
