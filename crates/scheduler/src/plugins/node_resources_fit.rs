//! NodeResourcesFit: a node takes no more than it has to give; emptier nodes are more welcome (LeastAllocated).
use std::borrow::Cow;

use super::plugin::{Plugin, SCORE_MAX};
use crate::cluster::NodeState;
use crate::reason::{Reason, Refusal};
use crate::view::PodSpec;

/// See the module.
#[derive(Debug)]
pub struct NodeResourcesFit;

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn filter(&self, spec: &PodSpec, state: &NodeState) -> Option<Refusal> {
        let (want, node, used) = (&spec.requests.asked, &state.node, &state.requested);
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
        for (name, n) in &want.scalars {
            let reason = || Reason(Cow::Owned(format!("Insufficient {name}")));
            check(*n, node.allocatable.scalar(name), used.scalar(name), &reason);
        }
        (!reasons.is_empty()).then_some(Refusal { preemptible, reasons })
    }

    fn never_fits(&self, spec: &PodSpec, state: &NodeState) -> bool {
        let (want, all) = (&spec.requests.asked, &state.node.allocatable);
        want.cpu > all.cpu
            || want.memory > all.memory
            || want.ephemeral > all.ephemeral
            || want.scalars.iter().any(|(name, n)| *n > all.scalar(name))
    }

    fn score(&self, spec: &PodSpec, state: &NodeState) -> i64 {
        let all = &state.node.allocatable;
        let pairs = [
            (state.assumed_cpu + spec.requests.assumed_cpu, all.cpu),
            (state.assumed_memory + spec.requests.assumed_memory, all.memory),
        ];
        let (mut sum, mut count) = (0, 0);
        for (used, all) in pairs.into_iter().filter(|(_, all)| *all > 0) {
            count += 1;
            if used <= all {
                // Memory in bytes times a hundred still fits: an i64 holds 80 PiB of it.
                sum += (all - used).saturating_mul(SCORE_MAX) / all;
            }
        }
        if count == 0 { 0 } else { sum / count }
    }

    fn weight(&self) -> i64 {
        1
    }
}
