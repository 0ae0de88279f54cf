//! Inventory and assignment of devices. Pure: plugins' reports and the time are inputs.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::messages::{ContainerAllocation, Device, PluginOptions};
use crate::dra::health::Health;
use crate::placement::hints::NumaHint;
use crate::placement::numa::{NodeMask, subsets};

/// Time in which a plugin may return (upstream: `endpointStopGracePeriod`). Until then its devices count as unhealthy, and after it as
/// removed.
const RETURN_MAX: Duration = Duration::from_secs(5 * 60);
/// Maximum number of resources.
const RESOURCES_MAX: usize = 128;

/// One device of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceState {
    healthy: bool,
    /// Numbers of NUMA nodes near it.
    near: Vec<i64>,
}

#[derive(Clone, Debug, Default)]
struct Resource {
    options: PluginOptions,
    devices: BTreeMap<String, DeviceState>,
    /// The time at which the plug-in disconnected. `None` while it is connected.
    gone: Option<Instant>,
    /// Whether the plugin has sent a list since this kubelet started.
    heard: bool,
}

/// Devices of one resource that a container holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeldDevices {
    /// IDs by NUMA node; -1 for devices without a NUMA node.
    pub near: BTreeMap<i64, BTreeSet<String>>,
    /// The plugin's `Allocate` response; `None` while the plugin is asked.
    pub answer: Option<ContainerAllocation>,
}

impl HeldDevices {
    /// IDs of the devices.
    pub fn ids(&self) -> BTreeSet<String> {
        self.near.values().flatten().cloned().collect()
    }
}

/// Key of an assignment: pod UID, container, resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceHolder {
    /// UID of the pod.
    pub pod: String,
    /// Name of the container in the pod.
    pub container: String,
    /// Name of the resource, such as `example.com/gpu`.
    pub resource: String,
}

/// Result of a container's request for devices.
#[derive(Debug, PartialEq, Eq)]
pub enum DeviceOffer {
    /// The container already holds its devices.
    Has,
    /// Devices must be chosen from these.
    From(DeviceChoice),
}

/// Candidates for an assignment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// Devices of the pod's earlier init containers, which are used first.
    pub own: Vec<String>,
    /// Free devices: those near the container's other resources first, then other ones, then those without a NUMA node.
    pub free: Vec<String>,
    /// Number of near devices in `free`.
    pub near: usize,
    /// Whether the plugin supports `GetPreferredAllocation`.
    pub is_asked: bool,
}

/// Numbers of devices of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCount {
    /// All devices, healthy or not.
    pub capacity: i64,
    /// Number of healthy devices.
    pub allocatable: i64,
}

/// A container's request for one resource.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRequest<'a> {
    /// Number of requested devices.
    pub wanted: usize,
    /// Devices of the pod's earlier init containers.
    pub own: &'a BTreeSet<String>,
    /// NUMA nodes of the container's other resources, if alignment matters.
    pub near: Option<NodeMask>,
}

impl Resource {
    /// Sorts devices: near these NUMA nodes first, then others, then those without a NUMA node. Returns also the number of near ones.
    /// Without `near` the order is unchanged and the number is 0.
    fn nearest_first(&self, free: Vec<String>, near: Option<NodeMask>) -> (Vec<String>, usize) {
        let Some(mask) = near.filter(|_| self.is_placed()) else { return (free, 0) };
        let place = |id: &String| self.devices.get(id).map(|d| d.places()).unwrap_or_default();
        let (near, others): (Vec<String>, Vec<String>) = free.into_iter().partition(|id| mask.has_any(&place(id)));
        let (nowhere, far): (Vec<String>, Vec<String>) = others.into_iter().partition(|id| place(id).is_empty());
        let count = near.len();
        (near.into_iter().chain(far).chain(nowhere).collect(), count)
    }

    /// Returns whether any device has a NUMA node.
    fn is_placed(&self) -> bool {
        self.devices.values().any(|d| !d.near.is_empty())
    }

    /// NUMA hints for `wanted` devices from the free ones and the pod's own, which must be included.
    fn places(&self, free: &BTreeSet<&String>, own: &BTreeSet<String>, wanted: usize, nodes: &[u32]) -> Vec<NumaHint> {
        let hosts: Vec<u32> =
            nodes.iter().copied().filter(|n| self.devices.values().any(|d| d.places().contains(n))).collect();
        let hosts = if hosts.is_empty() { nodes.to_vec() } else { hosts };
        let in_mask = |mask: NodeMask, id: &String| self.devices.get(id).is_some_and(|d| mask.has_any(&d.places()));
        let mut least = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        let mut out = Vec::new();
        for mask in subsets(&hosts) {
            if self.devices.keys().filter(|id| in_mask(mask, id)).count() >= wanted {
                least = least.min(mask.count());
            }
            let placed: Vec<&String> =
                own.iter().filter(|id| self.devices.get(*id).is_some_and(|d| !d.near.is_empty())).collect();
            let has_own = placed.iter().all(|id| in_mask(mask, id));
            if has_own && placed.len() + free.iter().filter(|id| in_mask(mask, id)).count() >= wanted {
                out.push(mask);
            }
        }
        out.into_iter().map(|mask| NumaHint { nodes: Some(mask), preferred: mask.count() == least }).collect()
    }
}

impl DeviceState {
    fn places(&self) -> Vec<u32> {
        self.near.iter().filter_map(|n| u32::try_from(*n).ok()).collect()
    }
}

/// Inventory and assignments; see the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Table {
    resources: BTreeMap<String, Resource>,
    held: BTreeMap<DeviceHolder, HeldDevices>,
}

impl Table {
    /// Creates a table from a checkpoint. The resources have no devices until their plugins register again.
    pub fn remembered(
        resources: impl IntoIterator<Item = String>,
        held: BTreeMap<DeviceHolder, HeldDevices>,
        now: Instant,
    ) -> Self {
        let gone = |name| (name, Resource { gone: Some(now), ..Resource::default() });
        Self { resources: resources.into_iter().take(RESOURCES_MAX).map(gone).collect(), held }
    }

    /// Adds a plugin's resource, possibly again.
    ///
    /// # Errors
    /// There are too many resources.
    pub fn registered(&mut self, resource: &str, options: PluginOptions) -> Result<(), String> {
        if !self.resources.contains_key(resource) && self.resources.len() >= RESOURCES_MAX {
            return Err(format!("more than {RESOURCES_MAX} resources are registered on this node"));
        }
        let entry = self.resources.entry(resource.to_owned()).or_default();
        (entry.options, entry.gone) = (options, None);
        Ok(())
    }

    /// Replaces the devices of a plugin. Returns whether the inventory changed.
    pub fn listed(&mut self, resource: &str, devices: Vec<Device>) -> bool {
        let Some(entry) = self.resources.get_mut(resource) else { return false };
        let of = |d: Device| {
            let near = d.topology.map(|t| t.nodes.iter().map(|n| n.id).collect()).unwrap_or_default();
            (d.id, DeviceState { healthy: d.health == "Healthy", near })
        };
        let devices: BTreeMap<String, DeviceState> = devices.into_iter().map(of).collect();
        let changed = !entry.heard || entry.devices != devices;
        (entry.devices, entry.heard) = (devices, true);
        changed
    }

    /// Records that a plugin is gone; its devices count as unhealthy.
    pub fn gone(&mut self, resource: &str, now: Instant) {
        if let Some(entry) = self.resources.get_mut(resource) {
            entry.devices.values_mut().for_each(|d| d.healthy = false);
            entry.gone.get_or_insert(now);
        }
    }

    /// Capacity and allocatable number of devices by resource. They are 0 if the plugin is gone for good or has not sent a list yet.
    pub fn amounts(&self, now: Instant) -> BTreeMap<String, DeviceCount> {
        let amount = |r: &Resource| {
            if r.gone.is_some_and(|at| now.duration_since(at) >= RETURN_MAX) {
                return DeviceCount::default();
            }
            let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
            let well = r.devices.values().filter(|d| d.healthy).count();
            DeviceCount { capacity: count(r.devices.len()), allocatable: count(well) }
        };
        self.resources.iter().map(|(name, r)| (name.clone(), amount(r))).collect()
    }

    /// Returns whether a plugin advertises this resource, or did to the previous kubelet.
    pub fn offers(&self, resource: &str) -> bool {
        self.resources.contains_key(resource)
    }

    /// Returns all advertised resources.
    pub fn offered(&self) -> BTreeSet<String> {
        self.resources.keys().cloned().collect()
    }

    /// Options of the resource's plugin.
    pub fn options(&self, resource: &str) -> PluginOptions {
        self.resources.get(resource).map(|r| r.options).unwrap_or_default()
    }

    /// Checks a container's request. A restarted container keeps its devices if they are healthy or `starts_anew` is false.
    ///
    /// # Errors
    /// Why the request cannot be met, in upstream's words.
    pub fn offer(
        &self,
        whose: &DeviceHolder,
        ask: &DeviceRequest<'_>,
        starts_anew: bool,
    ) -> Result<DeviceOffer, String> {
        let (name, wanted) = (&whose.resource, ask.wanted);
        let before = self.held.get(whose).map(HeldDevices::ids);
        if let Some(before) = before.as_ref().filter(|ids| ids.len() != wanted) {
            return Err(format!(
                "pod {:?} container {:?} changed request for resource {name:?} from {} to {wanted}",
                whose.pod,
                whose.container,
                before.len()
            ));
        }
        if before.is_some() && !starts_anew {
            return Ok(DeviceOffer::Has);
        }
        let resource = self.resources.get(name).filter(|r| r.heard);
        let Some(resource) = resource else { return Err(format!("cannot allocate unregistered device {name}")) };
        let well: BTreeSet<&String> = resource.devices.iter().filter(|(_, d)| d.healthy).map(|(id, _)| id).collect();
        if well.is_empty() {
            return Err(format!("no healthy devices present; cannot allocate unhealthy devices {name}"));
        }
        if let Some(before) = before {
            if before.iter().all(|id| well.contains(id)) {
                return Ok(DeviceOffer::Has);
            }
            return Err(format!(
                "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {name}"
            ));
        }
        let taken: BTreeSet<String> =
            self.held.iter().filter(|(w, _)| w.resource == *name).flat_map(|(_, held)| held.ids()).collect();
        let own: Vec<String> = ask.own.iter().take(wanted).cloned().collect();
        let free: Vec<String> = well.into_iter().filter(|id| !taken.contains(*id)).cloned().collect();
        let (free, near) = resource.nearest_first(free, ask.near);
        let needed = wanted - own.len();
        if free.len() < needed {
            return Err(format!(
                "requested number of devices unavailable for {name}. Requested: {needed}, Available: {}",
                free.len()
            ));
        }
        Ok(DeviceOffer::From(DeviceChoice {
            own,
            free,
            near,
            is_asked: needed > 0 && resource.options.get_preferred_allocation_available,
        }))
    }

    /// Assigns devices: the pod's own first, then near ones with the preferred first, then others in the same order.
    ///
    /// # Errors
    /// As for [`Table::offer`], because other containers may have taken devices meanwhile.
    pub fn give(
        &mut self,
        whose: &DeviceHolder,
        ask: &DeviceRequest<'_>,
        preferred: &[String],
    ) -> Result<Vec<String>, String> {
        let DeviceOffer::From(choice) = self.offer(whose, ask, false)? else { return Ok(Vec::new()) };
        let (near, far) = choice.free.split_at(choice.near);
        let liked = |of: &'_ [String]| preferred.iter().filter(|id| of.contains(id)).cloned().collect::<Vec<_>>();
        let mut ids: Vec<String> = choice.own.clone();
        for id in liked(near).iter().chain(near).chain(&liked(far)).chain(far) {
            if ids.len() < ask.wanted && !ids.contains(id) {
                ids.push(id.clone());
            }
        }
        let devices = self.resources.get(&whose.resource).map(|r| &r.devices);
        let mut near: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
        for id in &ids {
            let parts = devices.and_then(|d| d.get(id)).map(|d| d.near.clone()).filter(|n| !n.is_empty());
            for part in parts.unwrap_or_else(|| vec![-1]) {
                near.entry(part).or_default().insert(id.clone());
            }
        }
        self.held.insert(whose.clone(), HeldDevices { near, answer: None });
        Ok(ids)
    }

    /// NUMA hints for a pod or one of its containers; `None` if any NUMA node is suitable.
    pub fn hints(
        &self,
        (pod, container): (&str, Option<&str>),
        resource: &str,
        ask: &DeviceRequest<'_>,
        nodes: &[u32],
    ) -> Option<Vec<NumaHint>> {
        let known = self.resources.get(resource).filter(|r| r.is_placed())?;
        let of_it =
            |w: &DeviceHolder| w.pod == pod && w.resource == resource && container.is_none_or(|c| w.container == c);
        let held: BTreeSet<String> = self.held.iter().filter(|(w, _)| of_it(w)).flat_map(|(_, h)| h.ids()).collect();
        if !held.is_empty() {
            let none = BTreeSet::new();
            let fits = held.len() == ask.wanted;
            return Some(if fits {
                known.places(&held.iter().collect(), &none, ask.wanted, nodes)
            } else {
                Vec::new()
            });
        }
        let taken: BTreeSet<String> =
            self.held.iter().filter(|(w, _)| w.resource == resource).flat_map(|(_, held)| held.ids()).collect();
        let free: BTreeSet<&String> =
            known.devices.iter().filter(|(id, d)| d.healthy && !taken.contains(*id)).map(|(id, _)| id).collect();
        let all = free.len() + ask.own.iter().filter(|id| !free.contains(id)).count();
        Some(if all < ask.wanted { Vec::new() } else { known.places(&free, ask.own, ask.wanted, nodes) })
    }

    /// Completes an assignment with the plugin's response, or removes it for `None`.
    pub fn settled(&mut self, whose: &DeviceHolder, answer: Option<ContainerAllocation>) {
        match (answer, self.held.get_mut(whose)) {
            (Some(answer), Some(held)) => held.answer = Some(answer),
            _ => drop(self.held.remove(whose)),
        }
    }

    /// Returns a container's devices, by resource.
    pub fn of<'a>(&'a self, pod: &'a str, container: &'a str) -> impl Iterator<Item = (&'a str, &'a HeldDevices)> {
        let of_it = move |(w, _): &(&DeviceHolder, &HeldDevices)| w.pod == pod && w.container == container;
        self.held.iter().filter(of_it).map(|(w, held)| (w.resource.as_str(), held))
    }

    /// Health of a container's devices. It is unknown if the plugin is gone or has not sent a list to this kubelet.
    pub fn health(&self, pod: &str, container: &str) -> Vec<(String, Vec<(String, Health)>)> {
        let state = |r: Option<&Resource>, id: &String| match r.filter(|r| r.heard && r.gone.is_none()) {
            None => Health::Unknown,
            Some(r) if r.devices.get(id).is_some_and(|d| d.healthy) => Health::Healthy,
            Some(_) => Health::Unhealthy,
        };
        let of_resource = |(name, held): (&str, &HeldDevices)| {
            let known = self.resources.get(name);
            (name.to_owned(), held.ids().into_iter().map(|id| (id.clone(), state(known, &id))).collect())
        };
        self.of(pod, container).map(of_resource).collect()
    }

    /// UIDs of pods with devices.
    pub fn holders(&self) -> BTreeSet<String> {
        self.held.keys().map(|whose| whose.pod.clone()).collect()
    }

    /// IDs of a container's devices of one resource.
    pub fn held(&self, whose: &DeviceHolder) -> BTreeSet<String> {
        self.held.get(whose).map(HeldDevices::ids).unwrap_or_default()
    }

    /// Removes the assignments of pods for which `stays` is false. Returns whether there were any.
    pub fn take_back(&mut self, stays: impl Fn(&str) -> bool) -> bool {
        let before = self.held.len();
        self.held.retain(|whose, _| stays(&whose.pod));
        self.held.len() != before
    }

    /// Returns the state for the checkpoint: advertised resources and completed assignments.
    pub fn lasting(&self) -> (Vec<String>, Vec<(DeviceHolder, HeldDevices)>) {
        let held = self.held.iter().filter(|(_, h)| h.answer.is_some());
        (self.resources.keys().cloned().collect(), held.map(|(w, h)| (w.clone(), h.clone())).collect())
    }

    /// Healthy devices by resource and NUMA node; -1 for none.
    pub fn allocatable(&self) -> Vec<(String, BTreeMap<i64, BTreeSet<String>>)> {
        let of = |(name, r): (&String, &Resource)| {
            let mut near: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
            for (id, device) in r.devices.iter().filter(|(_, d)| d.healthy) {
                let parts = if device.near.is_empty() { &[-1][..] } else { &device.near };
                for part in parts {
                    near.entry(*part).or_default().insert(id.clone());
                }
            }
            (name.clone(), near)
        };
        self.resources.iter().map(of).collect()
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
