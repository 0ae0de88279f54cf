//! NodeVolumeLimits: the maximum number of volumes of one driver on a node, from its CSINode. A volume shared by
//! several pods of a node counts once.
use std::collections::{BTreeMap, BTreeSet};

use kelson_meta::ObjectKey;

use super::change::Change;
use super::plugin::{PerNode, Plugin, PodChange, Prepared};
use crate::cluster::{Cluster, NodeState};
use crate::reason::{Reason, Refusal};
use crate::view::PodSpec;

/// The plugin; see the module.
#[derive(Debug)]
pub struct NodeVolumeLimits;

/// CSI volumes: the driver, and a handle that identifies the volume for that driver.
type Volumes = BTreeSet<(String, String)>;

impl Plugin for NodeVolumeLimits {
    fn name(&self) -> &'static str {
        "NodeVolumeLimits"
    }

    fn prepare(&self, spec: &PodSpec, cluster: &mut Cluster) -> Prepared {
        let wanted: Volumes = cluster.storage.driver_volumes(spec).collect();
        if wanted.is_empty() { Prepared::Nothing } else { Prepared::PerNode(Box::new(Limited(wanted))) }
    }

    fn epoch(&self, spec: &PodSpec, cluster: &Cluster) -> u64 {
        if spec.claims.is_empty() { 0 } else { cluster.storage.epoch() }
    }

    fn requeues_on(&self, change: Change) -> bool {
        use Change::{AssignedPodDelete, ClaimAdd, CsiNodeAdd, CsiNodeDelete, CsiNodeUpdate};
        matches!(change, AssignedPodDelete | ClaimAdd | CsiNodeAdd | CsiNodeUpdate | CsiNodeDelete)
    }

    fn hint(&self, spec: &PodSpec, change: Change, about: &ObjectKey) -> bool {
        !matches!(change, Change::ClaimAdd | Change::ClaimUpdate) || spec.has_claim(about)
    }

    /// Useful is a pod with volumes that left its node.
    fn pod_hint(&self, _: &PodSpec, change: PodChange<'_>) -> bool {
        change.old.is_some_and(|old| !old.claims.is_empty())
    }
}

/// The CSI volumes of a spec.
#[derive(Debug)]
struct Limited(Volumes);

impl PerNode for Limited {
    fn filter(&self, cluster: &Cluster, state: &NodeState) -> Option<Refusal> {
        let limits = cluster.storage.limits(&state.node.name)?;
        let limited = |driver: &String| limits.contains_key(driver.as_str());
        if !self.0.iter().any(|(driver, _)| limited(driver)) {
            return None;
        }
        let there = state.pods.iter().filter(|p| !p.spec.claims.is_empty());
        let there: Volumes = there.flat_map(|p| cluster.storage.driver_volumes(&p.spec)).collect();
        let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (driver, _) in &there {
            counts.entry(driver).or_default().0 += 1;
        }
        for (driver, _) in self.0.difference(&there) {
            counts.entry(driver).or_default().1 += 1;
        }
        let over = |(driver, (has, more)): (&&str, &(usize, usize))| {
            *more > 0 && limits.get(*driver).is_some_and(|max| has + more > *max)
        };
        counts.iter().any(over).then(|| Refusal::one(true, Reason::TOO_MANY_VOLUMES))
    }
}
