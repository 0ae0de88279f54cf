//! TaintToleration: a node with a taint that the pod does not tolerate is rejected, or gets a lower score.
use super::plugin::{Normalize, Plugin};
use crate::cluster::NodeState;
use crate::reason::{Reason, Refusal};
use crate::view::PodSpec;

/// The plugin; see the module.
#[derive(Debug)]
pub struct TaintToleration;

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn filter(&self, spec: &PodSpec, state: &NodeState) -> Option<Refusal> {
        self.never_fits(spec, state).then(|| Refusal::one(false, Reason::TAINT))
    }

    fn judges_nodes(&self) -> bool {
        true
    }

    fn never_fits(&self, spec: &PodSpec, state: &NodeState) -> bool {
        spec.has_untolerated(&state.node.taints)
    }

    /// Returns the number of `PreferNoSchedule` taints that the pod does not tolerate.
    fn score(&self, spec: &PodSpec, state: &NodeState) -> i64 {
        state.node.taints.iter().filter(|t| !t.keeps_away() && !spec.tolerates(t)).count() as i64
    }

    fn normalize(&self) -> Normalize {
        Normalize::Reversed
    }

    fn weight(&self) -> i64 {
        3
    }
}
