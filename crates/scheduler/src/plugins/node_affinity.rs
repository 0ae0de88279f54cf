//! NodeAffinity: `nodeSelector` and node affinity, required and preferred. Terms that select nodes by name limit the
//! search to those nodes, as NodeName does upstream. A profile may add an affinity for all of its pods.
use kelson_meta::{NodeSelector, NodeSelectorTerm};

use super::plugin::{Normalize, Plugin};
use crate::cluster::NodeState;
use crate::reason::{Reason, Refusal};
use crate::view::PodSpec;

/// The plugin with its arguments; see the module.
#[derive(Clone, Copy, Debug)]
pub struct NodeAffinity {
    /// Required for every pod of the profile.
    pub required: Option<&'static NodeSelector>,
    /// Preferred for every pod of the profile, with weights.
    pub preferred: &'static [(i64, NodeSelectorTerm)],
}

impl NodeAffinity {
    /// The arguments of the default profile.
    pub const DEFAULT: Self = Self { required: None, preferred: &[] };

    fn is_excluded(&self, state: &NodeState) -> bool {
        self.required.is_some_and(|all| !all.matches(&state.node.name, &state.node.labels))
    }
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn only_nodes<'a>(&self, spec: &'a PodSpec) -> Option<&'a [Box<str>]> {
        spec.only_nodes.as_deref()
    }

    fn filter(&self, spec: &PodSpec, state: &NodeState) -> Option<Refusal> {
        if self.is_excluded(state) {
            return Some(Refusal::one(false, Reason::ENFORCED_AFFINITY));
        }
        self.never_fits(spec, state).then(|| Refusal::one(false, Reason::AFFINITY))
    }

    fn judges_nodes(&self) -> bool {
        true
    }

    fn never_fits(&self, spec: &PodSpec, state: &NodeState) -> bool {
        self.is_excluded(state) || !spec.node_matches(&state.node.name, &state.node.labels)
    }

    /// Returns the sum of the weights of the matching preferences.
    fn score(&self, spec: &PodSpec, state: &NodeState) -> i64 {
        let (name, labels) = (&state.node.name, &state.node.labels);
        let all = spec.node_preferences.iter().chain(self.preferred);
        all.filter(|(_, t)| t.matches(name, labels)).map(|(w, _)| w).sum()
    }

    fn normalize(&self) -> Normalize {
        Normalize::ToHighest
    }

    fn weight(&self) -> i64 {
        2
    }
}
