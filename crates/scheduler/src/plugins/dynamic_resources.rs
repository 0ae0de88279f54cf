//! DynamicResources: a pod fits only on nodes where the devices of its claims can be used, and where devices for its
//! other claims are available (KEP-4381). The devices on the chosen node are found by the same search
//! ([`Devices::plan`]).
//!
//! [`Devices::plan`]: crate::cluster::devices::Devices::plan
use std::sync::Arc;

use kelson_devices::ResourceClaimView;
use kelson_devices::allocate::{AllocationError, ClaimRequest};

use super::change::Change;
use super::plugin::{Normalize, PerNode, Plugin, Prepared};
use crate::cluster::devices::Devices;
use crate::cluster::extended::ExtendedNeeds;
use crate::cluster::{Cluster, NodeState};
use crate::reason::{Reason, Refusal};
use crate::view::PodSpec;

/// The plugin; see the module.
#[derive(Debug)]
pub struct DynamicResources;

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        "DynamicResources"
    }

    fn prepare(&self, spec: &PodSpec, cluster: &mut Cluster) -> Prepared {
        let extended = cluster.devices.extended_needs(spec);
        match claims(spec, &cluster.devices) {
            Ok(claims) if claims.is_empty() && extended.is_none() => Prepared::Nothing,
            Ok(claims) => Prepared::PerNode(Box::new(Needed { claims, extended })),
            Err(message) => Prepared::Refused(message),
        }
    }

    fn epoch(&self, spec: &PodSpec, cluster: &Cluster) -> u64 {
        let devices = &cluster.devices;
        if !spec.devices.is_empty() {
            return devices.epoch();
        }
        match spec.extended.iter().any(|ask| devices.class_of(&ask.resource).is_some()) {
            true => devices.epoch(),
            // Most extended resources come from device plugins, and then claims do not matter to the pod. The two kinds
            // of number never coincide.
            false if !spec.extended.is_empty() => u64::MAX - devices.class_epoch(),
            false => 0,
        }
    }

    fn normalize(&self) -> Normalize {
        Normalize::ToHighest
    }

    fn weight(&self) -> i64 {
        2
    }

    fn requeues_on(&self, change: Change) -> bool {
        use Change::{DeviceClassAdd, DeviceClassUpdate, SliceAdd, SliceUpdate};
        let claims = matches!(change, Change::ResourceClaimAdd | Change::ResourceClaimUpdate);
        claims || matches!(change, DeviceClassAdd | DeviceClassUpdate | SliceAdd | SliceUpdate)
    }

    /// Labels decide which devices a node can use, and whether a device plugin on the node provides a resource.
    fn node_hint(&self, _: &PodSpec, old: Option<&NodeState>, new: &NodeState) -> bool {
        let same = |old: &NodeState| old.node.labels == new.node.labels && old.node.allocatable == new.node.allocatable;
        !old.is_some_and(same)
    }
}

/// Returns the claims of a pod, or why no node fits.
fn claims(spec: &PodSpec, devices: &Devices) -> Result<Vec<Arc<ResourceClaimView>>, String> {
    let claims: Vec<_> = devices.claims_of(spec)?.into_iter().cloned().collect();
    for claim in claims.iter().filter(|c| c.status.allocation.is_none()) {
        let name = format!("{}/{}", claim.metadata.namespace, claim.metadata.name);
        if devices.is_pending(&claim.metadata.uid) {
            return Err(format!("resource claim {name} is in the process of being allocated"));
        }
        for request in &claim.spec.devices.requests {
            let of = &request.name;
            let classes: Vec<(String, &str)> = match &request.exactly {
                Some(asked) => vec![(of.clone(), &asked.device_class_name)],
                None if request.first_available.is_empty() => {
                    return Err(format!("resource claim {name}, request {of}: unknown request type"));
                }
                None => {
                    let each = request.first_available.iter();
                    each.map(|s| (format!("{of}/{}", s.name), s.device_class_name.as_str())).collect()
                }
            };
            let missing = classes.iter().find(|(_, class)| !devices.has_class(class));
            if let Some((request, class)) = missing {
                return Err(format!("request {request}: device class {class} does not exist"));
            }
        }
    }
    Ok(claims)
}

/// The claims of a pod, and the extended resources that it requests.
#[derive(Debug)]
struct Needed {
    claims: Vec<Arc<ResourceClaimView>>,
    extended: Option<ExtendedNeeds>,
}

impl Needed {
    fn solve(&self, cluster: &Cluster, state: &NodeState) -> Result<Option<i64>, AllocationError> {
        let made = match &self.extended {
            Some(needs) => {
                Some((needs, needs.on(&state.node).map_err(|why| AllocationError::Node(why.0.into_owned()))?))
            }
            None => None,
        };
        let made = made.filter(|(_, made)| !made.is_empty()).map(|(needs, made)| (&needs.claim, made.spec()));
        if made.is_none() && self.claims.is_empty() {
            return Ok(Some(0));
        }
        let wish = made.as_ref().map(|(claim, spec)| ClaimRequest { claim, spec });
        cluster.devices.score(&self.claims, wish, &state.node)
    }
}

impl PerNode for Needed {
    fn filter(&self, cluster: &Cluster, state: &NodeState) -> Option<Refusal> {
        let (devices, node) = (&cluster.devices, &state.node);
        let refused = |reason: Reason| Some(Refusal::one(false, reason));
        match self.solve(cluster, state) {
            Err(AllocationError::Claim(error)) => return Some(Refusal::fault(error.to_string())),
            Err(AllocationError::Node(text)) => return refused(Reason(text.into())),
            Err(AllocationError::Late) => {
                let text = format!("node {}: timed out trying to allocate devices", node.name);
                return Some(Refusal::fault(text));
            }
            Ok(None) => return refused(Reason::DEVICES),
            Ok(Some(_)) => {}
        }
        let usable = self.claims.iter().all(|c| devices.is_usable(c, node));
        if usable { None } else { refused(Reason::DEVICES_ELSEWHERE) }
    }

    fn score(&self, _: &PodSpec, cluster: &Cluster, state: &NodeState) -> i64 {
        self.solve(cluster, state).ok().flatten().unwrap_or(0)
    }
}
