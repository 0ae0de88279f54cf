//! NodeDeclaredFeatures: a pod that needs a node feature only fits on nodes that declare it (KEP-5328).
use super::plugin::Plugin;
use crate::cluster::NodeState;
use crate::reason::{Reason, Refusal};
use crate::view::PodSpec;

/// The plugin; see the module.
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
