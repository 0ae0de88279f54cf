//! NodeDeclaredFeatures: a pod that needs what only some nodes can goes to those that say so (KEP-5328).
use super::plugin::Plugin;
use crate::cluster::NodeState;
use crate::reason::{Reason, Refusal};
use crate::view::PodSpec;

/// See the module.
#[derive(Debug)]
pub struct NodeDeclaredFeatures;

impl Plugin for NodeDeclaredFeatures {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatures"
    }

    fn filter(&self, spec: &PodSpec, state: &NodeState) -> Option<Refusal> {
        self.never_fits(spec, state).then(|| Refusal::one(false, Reason::FEATURES))
    }

    fn judges_nodes(&self) -> bool {
        true
    }

    fn never_fits(&self, spec: &PodSpec, state: &NodeState) -> bool {
        !spec.features.iter().all(|needed| state.node.features.iter().any(|has| **has == **needed))
    }
}
