//! VolumeBinding and VolumeZone: the node of a pod must reach its bound volumes, and be able to get the missing ones.
//! What is bound for the chosen node is computed by the same function ([`Needs::place`]).
use kelson_meta::ObjectKey;

use super::change::Change;
use super::plugin::{PerNode, Plugin, Prepared};
use crate::cluster::storage::{Claims, Needs};
use crate::cluster::{Cluster, NodeState};
use crate::reason::Refusal;
use crate::view::PodSpec;

/// The plugin; see the module.
#[derive(Debug)]
pub struct VolumeBinding;

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        "VolumeBinding"
    }

    fn prepare(&self, spec: &PodSpec, cluster: &mut Cluster) -> Prepared {
        if spec.claims.is_empty() {
            return Prepared::Nothing;
        }
        match cluster.storage.claims(spec) {
            Claims::Refused(message) => Prepared::Refused(message),
            Claims::Needs(needs) if needs.is_empty() => Prepared::Nothing,
            Claims::Needs(needs) => Prepared::PerNode(Box::new(needs)),
        }
    }

    fn epoch(&self, spec: &PodSpec, cluster: &Cluster) -> u64 {
        if spec.claims.is_empty() { 0 } else { cluster.storage.epoch() }
    }

    fn requeues_on(&self, change: Change) -> bool {
        use Change::{
            CapacityAdd, CapacityUpdate, ClaimAdd, ClaimUpdate, ClassAdd, ClassUpdate, CsiDriverUpdate, CsiNodeAdd,
            VolumeAdd, VolumeUpdate,
        };
        let capacity = matches!(change, CapacityAdd | CapacityUpdate | CsiDriverUpdate | CsiNodeAdd);
        capacity || matches!(change, ClaimAdd | ClaimUpdate | VolumeAdd | VolumeUpdate | ClassAdd | ClassUpdate)
    }

    /// Labels decide which volumes a node reaches.
    fn node_hint(&self, _: &PodSpec, old: Option<&NodeState>, new: &NodeState) -> bool {
        old.is_none_or(|old| old.node.labels != new.node.labels)
    }

    fn hint(&self, spec: &PodSpec, change: Change, about: &ObjectKey) -> bool {
        !matches!(change, Change::ClaimAdd | Change::ClaimUpdate) || spec.has_claim(about)
    }
}

impl PerNode for Needs {
    fn filter(&self, cluster: &Cluster, state: &NodeState) -> Option<Refusal> {
        let against = self.place(&cluster.storage, &state.node).err()?;
        Some(Refusal::all(false, against))
    }
}
