//! NodeAffinity: `nodeSelector` and node affinity, required and preferred. Names given by field narrow the search to
//! those nodes, as NodeName does in the reference.
use super::plugin::{Normalize, Plugin};
use crate::cluster::NodeState;
use crate::reason::{Reason, Refusal};
use crate::view::PodSpec;

/// See the module.
#[derive(Debug)]
pub struct NodeAffinity;

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn only_nodes<'a>(&self, spec: &'a PodSpec) -> Option<&'a [Box<str>]> {
        spec.only_nodes.as_deref()
    }

    fn filter(&self, spec: &PodSpec, state: &NodeState) -> Option<Refusal> {
        self.never_fits(spec, state).then(|| Refusal::one(false, Reason::AFFINITY))
    }

    fn never_fits(&self, spec: &PodSpec, state: &NodeState) -> bool {
        !spec.node_matches(&state.node.name, &state.node.labels)
    }

    /// The sum of the weights of the preferences that match.
    fn score(&self, spec: &PodSpec, state: &NodeState) -> i64 {
        let (name, labels) = (&state.node.name, &state.node.labels);
        spec.node_preferences.iter().filter(|(_, t)| t.matches(name, labels)).map(|(w, _)| w).sum()
    }

    fn normalize(&self) -> Normalize {
        Normalize::ToHighest
    }

    fn weight(&self) -> i64 {
        2
    }
}
