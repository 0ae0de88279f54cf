//! Health of the devices of pods: it is part of their status (KEP-4680), which is computed again when it changes.
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus, ResourceHealth, ResourceStatus};

use super::inbox::ManagerInbox;
use super::parts::Parts;
use crate::devices::Devices;
use crate::dra::DynamicResources;
use crate::dra::health::Health;
use crate::pod;

/// Notifies workers of pods whose devices may have changed their health.
#[derive(Clone)]
pub struct HealthNotifier {
    /// Devices of device plugins.
    pub devices: Devices,
    /// Devices of resource claims.
    pub claims: DynamicResources,
    /// The manager's inbox, which forwards to workers.
    pub manager: ManagerInbox,
}

impl HealthNotifier {
    /// Runs until its task is aborted.
    pub async fn run(self) {
        let (mut of_plugins, mut of_claims) = (self.devices.changes(), self.claims.health_changes());
        loop {
            // The senders live as long as `self`.
            let pods = tokio::select! {
                Ok(()) = of_plugins.changed() => self.devices.holders(),
                Ok(()) = of_claims.changed() => self.claims.users(),
                else => return,
            };
            self.manager.health(pods);
        }
    }
}

/// Adds the health of the containers' devices to a status. A pod that has ended keeps the last known health.
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
