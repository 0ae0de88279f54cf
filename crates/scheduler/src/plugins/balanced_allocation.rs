//! NodeResourcesBalancedAllocation: nodes whose CPU and memory are used more evenly with the pod are more welcome.
use super::plugin::{Plugin, SCORE_MAX};
use crate::cluster::NodeState;
use crate::view::PodSpec;

/// See the module.
#[derive(Debug)]
pub struct NodeResourcesBalancedAllocation;

impl Plugin for NodeResourcesBalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    /// How even CPU and memory are used with the pod, compared to without it: 50 to 100, 75 when it changes nothing.
    fn score(&self, spec: &PodSpec, state: &NodeState) -> i64 {
        if spec.is_best_effort() {
            return 0;
        }
        let (all, used, want) = (&state.node.allocatable, &state.requested, &spec.requests.asked);
        let evenness = |cpu: i64, memory: i64| {
            if all.cpu == 0 || all.memory == 0 {
                return SCORE_MAX;
            }
            let part = |n: i64, all: i64| (n as f64 / all as f64).min(1.0);
            let deviation = ((part(cpu, all.cpu) - part(memory, all.memory)) / 2.0).abs();
            ((1.0 - deviation) * SCORE_MAX as f64) as i64
        };
        let with = evenness(used.cpu + want.cpu, used.memory + want.memory);
        let without = evenness(used.cpu, used.memory);
        SCORE_MAX / 2 + (SCORE_MAX / 2 + with - without) / 2
    }

    fn weight(&self) -> i64 {
        1
    }
}
