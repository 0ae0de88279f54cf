//! NodeResourcesBalancedAllocation: nodes whose resources (CPU and memory, where nothing says others) are used more evenly with
//! the pod are more welcome.
use super::plugin::{Plugin, SCORE_MAX};
use crate::cluster::NodeState;
use crate::view::PodSpec;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct NodeResourcesBalancedAllocation {
    /// The resources that are to be used evenly.
    pub resources: &'static [&'static str],
}

impl NodeResourcesBalancedAllocation {
    /// As in the default profile.
    pub const DEFAULT: Self = Self { resources: &["cpu", "memory"] };
}

/// How evenly resources are used, of each of which this part is: 100 when all are alike.
fn evenness(parts: impl Iterator<Item = f64> + Clone) -> i64 {
    let n = parts.clone().count() as f64;
    let mean = parts.clone().sum::<f64>() / n.max(1.0);
    let deviation = if n == 2.0 {
        // The same, without the error of a root.
        parts.map(|part| (part - mean).abs()).sum::<f64>() / 2.0
    } else {
        (parts.map(|part| (part - mean) * (part - mean)).sum::<f64>() / n.max(1.0)).sqrt()
    };
    ((1.0 - deviation) * SCORE_MAX as f64) as i64
}

impl Plugin for NodeResourcesBalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    /// How even the resources are used with the pod, compared to without it: 50 to 100, 75 when it changes nothing.
    fn score(&self, spec: &PodSpec, state: &NodeState) -> i64 {
        let (all, used, want) = (&state.node.allocatable, &state.requested, &spec.requests.asked);
        if self.resources.iter().all(|name| want.amount(name) == 0) {
            return 0;
        }
        // Where the pod does not ask for an extended resource, that says nothing of the node.
        let counts = |name: &str| matches!(name, "cpu" | "memory" | "ephemeral-storage") || want.amount(name) != 0;
        let part = |name: &str, with: i64| {
            let all = all.amount(name);
            (all != 0 && counts(name)).then(|| ((used.amount(name) + with) as f64 / all as f64).min(1.0))
        };
        let with = evenness(self.resources.iter().filter_map(|name| part(name, want.amount(name))));
        let without = evenness(self.resources.iter().filter_map(|name| part(name, 0)));
        SCORE_MAX / 2 + (SCORE_MAX / 2 + with - without) / 2
    }

    fn weight(&self) -> i64 {
        1
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
