//! NodeUnschedulable: a cordoned node accepts only pods that tolerate its taint.
use super::plugin::Plugin;
use crate::cluster::NodeState;
use crate::reason::{Reason, Refusal};
use crate::view::{PodSpec, Taint, TaintEffect};

/// The plugin; see the module.
#[derive(Debug)]
pub struct NodeUnschedulable;

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn filter(&self, spec: &PodSpec, state: &NodeState) -> Option<Refusal> {
        self.never_fits(spec, state).then(|| Refusal::one(false, Reason::UNSCHEDULABLE))
    }

    fn judges_nodes(&self) -> bool {
        true
    }

    fn never_fits(&self, spec: &PodSpec, state: &NodeState) -> bool {
        state.node.unschedulable && !tolerates(spec)
    }
}

fn tolerates(spec: &PodSpec) -> bool {
    let taint =
        Taint { key: "node.kubernetes.io/unschedulable".into(), value: "".into(), effect: TaintEffect::NoSchedule };
    spec.tolerations.iter().any(|t| t.tolerates(&taint))
}
