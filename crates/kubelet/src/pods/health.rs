//! How the devices are that pods have: their statuses say so (KEP-4680), and are put together again when that changes.
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus, ResourceHealth, ResourceStatus};

use super::inbox::ManagerInbox;
use super::parts::Parts;
use crate::devices::Devices;
use crate::dra::DynamicResources;
use crate::dra::health::Health;
use crate::pod;

/// Wakes the workers of pods whose devices may be in another state; cheap to clone.
#[derive(Clone)]
pub struct HealthNews {
    /// Devices of plugins.
    pub devices: Devices,
    /// Devices of claims.
    pub claims: DynamicResources,
    /// Knows the workers.
    pub manager: ManagerInbox,
}

impl HealthNews {
    /// Until the task is ended.
    pub async fn run(self) {
        let (mut of_plugins, mut of_claims) = (self.devices.changes(), self.claims.health_changes());
        loop {
            // The other ends live as long as what this holds.
            let pods = tokio::select! {
                Ok(()) = of_plugins.changed() => self.devices.holders(),
                Ok(()) = of_claims.changed() => self.claims.users(),
                else => return,
            };
            self.manager.health(pods);
        }
    }
}

/// Adds to a status how the devices are that containers have. A pod that has ended keeps what was last known.
pub(super) fn add(parts: &Parts, pod: &Pod, status: &mut PodStatus, has_ended: bool) {
    for c in status.container_statuses.iter_mut().flatten() {
        let mut all = BTreeMap::new();
        for (resource, devices) in parts.devices.health(pod::uid(pod), &c.name) {
            all.insert(resource, devices.into_iter().map(|(id, health)| one(id, health, String::new())).collect());
        }
        let spec = pod.spec.iter().flat_map(|s| &s.containers).find(|own| own.name == c.name);
        for (claim, devices) in spec.map(|own| parts.claims.health(pod, own)).unwrap_or_default() {
            all.insert(claim, devices.into_iter().map(|d| one(d.id, d.health, d.message)).collect());
        }
        let listed = all.into_iter().map(|(name, resources)| ResourceStatus { name, resources: Some(resources) });
        c.allocated_resources_status = Some(listed.collect::<Vec<_>>()).filter(|l| !l.is_empty());
        if c.allocated_resources_status.is_none() && has_ended {
            c.allocated_resources_status = before(pod, &c.name);
        }
    }
}

fn one(resource_id: String, health: Health, message: String) -> ResourceHealth {
    let message = Some(message).filter(|m| !m.is_empty());
    ResourceHealth { resource_id, health: Some(health.as_str().to_owned()), message }
}

fn before(pod: &Pod, container: &str) -> Option<Vec<ResourceStatus>> {
    let old = pod.status.as_ref()?.container_statuses.iter().flatten();
    old.filter(|c: &&ContainerStatus| c.name == container).find_map(|c| c.allocated_resources_status.clone())
}
