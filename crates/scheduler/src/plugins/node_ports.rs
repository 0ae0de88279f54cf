//! NodePorts: each host port of a node can be used by one pod.
use super::plugin::Plugin;
use crate::cluster::NodeState;
use crate::reason::{Reason, Refusal};
use crate::view::PodSpec;

/// The plugin; see the module.
#[derive(Debug)]
pub struct NodePorts;

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn counts_room(&self) -> bool {
        true
    }

    fn filter(&self, spec: &PodSpec, state: &NodeState) -> Option<Refusal> {
        if spec.ports.is_empty() {
            return None;
        }
        let taken = state.pods.iter().flat_map(|p| &p.spec.ports).any(|u| spec.ports.iter().any(|p| p.conflicts(u)));
        taken.then(|| Refusal::one(true, Reason::PORTS))
    }
}
