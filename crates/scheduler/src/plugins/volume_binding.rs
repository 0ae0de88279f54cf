//! VolumeBinding and VolumeZone, the part without binding: a pod goes only where its bound volumes can be reached.
use super::plugin::{Change, PerNode, Plugin, Prepared};
use crate::cluster::storage::Claims;
use crate::cluster::{Cluster, NodeState};
use crate::reason::Refusal;
use crate::view::PodSpec;

/// See the module.
#[derive(Debug)]
pub struct VolumeBinding;

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        "VolumeBinding"
    }

    fn prepare(&self, spec: &PodSpec, cluster: &mut Cluster) -> Prepared {
        match cluster.storage.claims(spec) {
            Claims::Refused(message) => Prepared::Refused(message),
            Claims::Bound(volumes) if volumes.is_empty() => Prepared::Nothing,
            Claims::Bound(volumes) => Prepared::PerNode(Box::new(Volumes(volumes))),
        }
    }

    fn epoch(&self, spec: &PodSpec, cluster: &Cluster) -> u64 {
        if spec.claims.is_empty() { 0 } else { cluster.storage.epoch() }
    }

    fn requeues_on(&self, change: Change) -> bool {
        change == Change::Storage
    }
}

/// The volumes of a pod whose claims are bound, by name.
#[derive(Debug)]
struct Volumes(Vec<String>);

impl PerNode for Volumes {
    fn filter(&self, cluster: &Cluster, state: &NodeState) -> Option<Refusal> {
        cluster.storage.reachable(&self.0, &state.node).map(|reason| Refusal::one(false, reason))
    }
}
