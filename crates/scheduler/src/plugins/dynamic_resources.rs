//! DynamicResources: a pod goes only where its claims' devices can be used, and where those can be had that they still lack
//! (KEP-4381). Which they are on the node that is chosen is decided by the same search ([`Devices::plan`]).
//!
//! [`Devices::plan`]: crate::cluster::devices::Devices::plan
use std::sync::Arc;

use kelson_devices::ResourceClaimView;
use kelson_devices::allocate::Trouble;

use super::change::Change;
use super::plugin::{Normalize, PerNode, Plugin, Prepared};
use crate::cluster::devices::Devices;
use crate::cluster::{Cluster, NodeState};
use crate::reason::{Reason, Refusal};
use crate::view::PodSpec;

/// See the module.
#[derive(Debug)]
pub struct DynamicResources;

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        "DynamicResources"
    }

    fn prepare(&self, spec: &PodSpec, cluster: &mut Cluster) -> Prepared {
        if spec.devices.is_empty() {
            return Prepared::Nothing;
        }
        match claims(spec, &cluster.devices) {
            Ok(claims) if claims.is_empty() => Prepared::Nothing,
            Ok(claims) => Prepared::PerNode(Box::new(Needed { claims })),
            Err(message) => Prepared::Refused(message),
        }
    }

    fn epoch(&self, spec: &PodSpec, cluster: &Cluster) -> u64 {
        if spec.devices.is_empty() { 0 } else { cluster.devices.epoch() }
    }

    fn normalize(&self) -> Normalize {
        Normalize::ToHighest
    }

    fn weight(&self) -> i64 {
        2
    }

    fn requeues_on(&self, change: Change) -> bool {
        use Change::{DeviceClassAdd, DeviceClassUpdate, NodeAdd, NodeUpdate, SliceAdd, SliceUpdate};
        let claims = matches!(change, Change::ResourceClaimAdd | Change::ResourceClaimUpdate);
        claims || matches!(change, DeviceClassAdd | DeviceClassUpdate | NodeAdd | NodeUpdate | SliceAdd | SliceUpdate)
    }
}

/// The claims of a pod, or why no node will do.
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

/// The claims of a pod.
#[derive(Debug)]
struct Needed {
    claims: Vec<Arc<ResourceClaimView>>,
}

impl PerNode for Needed {
    fn filter(&self, cluster: &Cluster, state: &NodeState) -> Option<Refusal> {
        let (devices, node) = (&cluster.devices, &state.node);
        let refused = |reason: Reason| Some(Refusal::one(false, reason));
        match devices.score(&self.claims, node) {
            Err(Trouble::Claim(text)) => return Some(Refusal::fault(text)),
            Err(Trouble::Node(text)) => return refused(Reason(text.into())),
            Err(Trouble::Late) => {
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
        cluster.devices.score(&self.claims, &state.node).ok().flatten().unwrap_or(0)
    }
}
