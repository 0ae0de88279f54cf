//! VolumeRestrictions: a claim with the mode `ReadWriteOncePod` can be used by one pod in the cluster.
use kelson_meta::ObjectKey;

use super::change::Change;
use super::plugin::{PerNode, Plugin, PodChange, Prepared};
use crate::cluster::{Cluster, NodeState};
use crate::reason::{Reason, Refusal};
use crate::view::PodSpec;

/// The plugin; see the module.
#[derive(Debug)]
pub struct VolumeRestrictions;

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        "VolumeRestrictions"
    }

    fn prepare(&self, spec: &PodSpec, cluster: &mut Cluster) -> Prepared {
        let keys = spec.claims.iter().map(|c| ObjectKey::new(&*spec.namespace, &*c.name));
        let alone = |key: &ObjectKey| {
            let claim = cluster.storage.claim(key);
            claim.is_some_and(|c| c.spec.access_modes.iter().any(|m| m == "ReadWriteOncePod"))
        };
        let keys: Vec<_> = keys.filter(alone).collect();
        if keys.is_empty() {
            return Prepared::Nothing;
        }
        Prepared::PerNode(Box::new(OnePodEach { keys, epoch: None }))
    }

    fn epoch(&self, spec: &PodSpec, cluster: &Cluster) -> u64 {
        if spec.claims.is_empty() { 0 } else { cluster.storage.epoch() }
    }

    fn requeues_on(&self, change: Change) -> bool {
        matches!(change, Change::AssignedPodDelete | Change::ClaimAdd)
    }

    fn hint(&self, spec: &PodSpec, change: Change, about: &ObjectKey) -> bool {
        !matches!(change, Change::ClaimAdd | Change::ClaimUpdate) || spec.has_claim(about)
    }

    /// Useful is a pod that left its node and has a claim of this pod.
    fn pod_hint(&self, spec: &PodSpec, change: PodChange<'_>) -> bool {
        let shares = |old: &PodSpec| {
            old.namespace == spec.namespace
                && old.claims.iter().any(|c| spec.claims.iter().any(|own| own.name == c.name))
        };
        change.old.is_some_and(shares)
    }
}

/// The claims of a spec that only one pod may use.
#[derive(Debug)]
struct OnePodEach {
    keys: Vec<ObjectKey>,
    /// The epoch of claim use when results were last given.
    epoch: Option<u64>,
}

impl PerNode for OnePodEach {
    fn refresh(&mut self, _: &PodSpec, cluster: &Cluster) -> bool {
        self.epoch.replace(cluster.claim_users.epoch()) != Some(cluster.claim_users.epoch())
    }

    /// The claim is used by a pod on another node, or by a pod that remains on this node.
    fn filter(&self, cluster: &Cluster, state: &NodeState) -> Option<Refusal> {
        let mut users = self.keys.iter().flat_map(|k| cluster.claim_users.of(k));
        let counts = |uid: &std::sync::Arc<str>| {
            cluster.node_of(uid) != Some(&*state.node.name) || state.pods.iter().any(|p| p.uid == *uid)
        };
        users.any(counts).then(|| Refusal::one(true, Reason::CLAIM_IN_USE))
    }
}
