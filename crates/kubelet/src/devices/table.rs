//! Which devices there are and which container has which. Pure: it is told what plugins say, and by the hour.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::messages::{ContainerAllocation, Device, PluginOptions};
use crate::dra::health::Health;
use crate::placement::hints::NumaHint;
use crate::placement::numa::{NodeMask, subsets};

/// A plugin that is gone may come back within this time (upstream `endpointStopGracePeriod`); its devices are shown as ill
/// till then, and as none after it.
const RETURN_MAX: Duration = Duration::from_secs(5 * 60);
/// Resources at once.
const RESOURCES_MAX: usize = 128;

/// One device of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownDevice {
    healthy: bool,
    /// Parts of the machine that it is near to, by number.
    near: Vec<i64>,
}

#[derive(Clone, Debug, Default)]
struct Resource {
    options: PluginOptions,
    devices: BTreeMap<String, KnownDevice>,
    /// Since when its plugin is gone; `None` while it is there.
    gone: Option<Instant>,
    /// Whether it ever said which devices it has since this kubelet started.
    heard: bool,
}

/// What one container holds of one resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Held {
    /// The devices, by the part of the machine that each is near to; -1 for none.
    pub near: BTreeMap<i64, BTreeSet<String>>,
    /// How the container gets them; `None` while its plugin is asked.
    pub answer: Option<ContainerAllocation>,
}

impl Held {
    /// The names of the devices.
    pub fn ids(&self) -> BTreeSet<String> {
        self.near.values().flatten().cloned().collect()
    }
}

/// Whose devices: pod (UID), container, resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    /// UID of the pod.
    pub pod: String,
    /// Name in the pod.
    pub container: String,
    /// Such as `example.com/gpu`.
    pub resource: String,
}

/// What is to be done for a container that wants devices.
#[derive(Debug, PartialEq, Eq)]
pub enum Offer {
    /// It has them.
    Has,
    /// These can be had.
    From(Choice),
}

/// What may be chosen of.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// What the pod's steps before the container had, of which it takes first.
    pub own: Vec<String>,
    /// What nobody has: those that are near to what else the container gets first, then those that are far, then those that are
    /// nowhere.
    pub free: Vec<String>,
    /// How many of them are near.
    pub near: usize,
    /// Whether the plugin says which go well together.
    pub is_asked: bool,
}

/// How many of a resource there are, and how many of them work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCount {
    /// All, whether they work or not.
    pub capacity: i64,
    /// Those that work.
    pub allocatable: i64,
}

/// What a container asks for of one resource.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// How many devices it wants.
    pub wanted: usize,
    /// What the pod's steps before it had.
    pub own: &'a BTreeSet<String>,
    /// The parts of the machine that what else it gets is from, where that matters.
    pub near: Option<NodeMask>,
}

impl Resource {
    /// Those near to these parts first, then others, then those that are nowhere; and how many are near. Where no place matters, all
    /// are alike and none is near.
    fn nearest_first(&self, free: Vec<String>, near: Option<NodeMask>) -> (Vec<String>, usize) {
        let Some(mask) = near.filter(|_| self.is_placed()) else { return (free, 0) };
        let place = |id: &String| self.devices.get(id).map(|d| d.places()).unwrap_or_default();
        let (near, others): (Vec<String>, Vec<String>) = free.into_iter().partition(|id| mask.has_any(&place(id)));
        let (nowhere, far): (Vec<String>, Vec<String>) = others.into_iter().partition(|id| place(id).is_empty());
        let count = near.len();
        (near.into_iter().chain(far).chain(nowhere).collect(), count)
    }

    /// Whether any of its devices says where it is.
    fn is_placed(&self) -> bool {
        self.devices.values().any(|d| !d.near.is_empty())
    }

    /// Where so many could come from of those that are free and of the pod's own, which must be among them.
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

impl KnownDevice {
    fn places(&self) -> Vec<u32> {
        self.near.iter().filter_map(|n| u32::try_from(*n).ok()).collect()
    }
}

/// All that is known, as the module says.
#[derive(Clone, Debug, Default)]
pub struct Table {
    resources: BTreeMap<String, Resource>,
    held: BTreeMap<Whose, Held>,
}

impl Table {
    /// What an earlier kubelet knew: the resources are none until their plugins register again.
    pub fn remembered(resources: impl IntoIterator<Item = String>, held: BTreeMap<Whose, Held>, now: Instant) -> Self {
        let gone = |name| (name, Resource { gone: Some(now), ..Resource::default() });
        Self { resources: resources.into_iter().take(RESOURCES_MAX).map(gone).collect(), held }
    }

    /// A plugin offers a resource, perhaps again.
    ///
    /// # Errors
    /// When there are too many.
    pub fn registered(&mut self, resource: &str, options: PluginOptions) -> Result<(), String> {
        if !self.resources.contains_key(resource) && self.resources.len() >= RESOURCES_MAX {
            return Err(format!("more than {RESOURCES_MAX} resources are registered on this node"));
        }
        let entry = self.resources.entry(resource.to_owned()).or_default();
        (entry.options, entry.gone) = (options, None);
        Ok(())
    }

    /// All devices that a plugin has now; whether that changed what there is.
    pub fn listed(&mut self, resource: &str, devices: Vec<Device>) -> bool {
        let Some(entry) = self.resources.get_mut(resource) else { return false };
        let of = |d: Device| {
            let near = d.topology.map(|t| t.nodes.iter().map(|n| n.id).collect()).unwrap_or_default();
            (d.id, KnownDevice { healthy: d.health == "Healthy", near })
        };
        let devices: BTreeMap<String, KnownDevice> = devices.into_iter().map(of).collect();
        let changed = !entry.heard || entry.devices != devices;
        (entry.devices, entry.heard) = (devices, true);
        changed
    }

    /// A plugin is gone: none of its devices can be trusted to work.
    pub fn gone(&mut self, resource: &str, now: Instant) {
        if let Some(entry) = self.resources.get_mut(resource) {
            entry.devices.values_mut().for_each(|d| d.healthy = false);
            entry.gone.get_or_insert(now);
        }
    }

    /// What the node has. Of a resource whose plugin is gone for good, and of one that has said nothing yet, it is none.
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

    /// Whether a plugin offers this resource, or did when the last kubelet ended.
    pub fn offers(&self, resource: &str) -> bool {
        self.resources.contains_key(resource)
    }

    /// All of these.
    pub fn offered(&self) -> BTreeSet<String> {
        self.resources.keys().cloned().collect()
    }

    /// What its plugin wants to be asked.
    pub fn options(&self, resource: &str) -> PluginOptions {
        self.resources.get(resource).map(|r| r.options).unwrap_or_default()
    }

    /// What a container may be given. A container that is made anew keeps what it has, if that works still and `starts_anew` says
    /// that it must.
    ///
    /// # Errors
    /// Why it cannot have so many, in upstream's words.
    pub fn offer(&self, whose: &Whose, ask: &Ask<'_>, starts_anew: bool) -> Result<Offer, String> {
        let (name, wanted) = (&whose.resource, ask.wanted);
        let before = self.held.get(whose).map(Held::ids);
        if let Some(before) = before.as_ref().filter(|ids| ids.len() != wanted) {
            return Err(format!(
                "pod {:?} container {:?} changed request for resource {name:?} from {} to {wanted}",
                whose.pod,
                whose.container,
                before.len()
            ));
        }
        if before.is_some() && !starts_anew {
            return Ok(Offer::Has);
        }
        let resource = self.resources.get(name).filter(|r| r.heard);
        let Some(resource) = resource else { return Err(format!("cannot allocate unregistered device {name}")) };
        let well: BTreeSet<&String> = resource.devices.iter().filter(|(_, d)| d.healthy).map(|(id, _)| id).collect();
        if well.is_empty() {
            return Err(format!("no healthy devices present; cannot allocate unhealthy devices {name}"));
        }
        if let Some(before) = before {
            if before.iter().all(|id| well.contains(id)) {
                return Ok(Offer::Has);
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
        Ok(Offer::From(Choice {
            own,
            free,
            near,
            is_asked: needed > 0 && resource.options.get_preferred_allocation_available,
        }))
    }

    /// Gives a container devices: the pod's own first, then near ones, of them the preferred, then others in the same way. They are
    /// its from now on.
    ///
    /// # Errors
    /// As of [`Table::offer`]: others may have come first.
    pub fn give(&mut self, whose: &Whose, ask: &Ask<'_>, preferred: &[String]) -> Result<Vec<String>, String> {
        let Offer::From(choice) = self.offer(whose, ask, false)? else { return Ok(Vec::new()) };
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
        self.held.insert(whose.clone(), Held { near, answer: None });
        Ok(ids)
    }

    /// Where devices could come from that a pod wants, or one container of it; `None`: from wherever.
    pub fn hints(
        &self,
        (pod, container): (&str, Option<&str>),
        resource: &str,
        ask: &Ask<'_>,
        nodes: &[u32],
    ) -> Option<Vec<NumaHint>> {
        let known = self.resources.get(resource).filter(|r| r.is_placed())?;
        let of_it = |w: &Whose| w.pod == pod && w.resource == resource && container.is_none_or(|c| w.container == c);
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

    /// How a container gets what it was given; `None`: it does not, and no longer has them.
    pub fn settled(&mut self, whose: &Whose, answer: Option<ContainerAllocation>) {
        match (answer, self.held.get_mut(whose)) {
            (Some(answer), Some(held)) => held.answer = Some(answer),
            _ => drop(self.held.remove(whose)),
        }
    }

    /// What a container has, by resource.
    pub fn of<'a>(&'a self, pod: &'a str, container: &'a str) -> impl Iterator<Item = (&'a str, &'a Held)> {
        let of_it = move |(w, _): &(&Whose, &Held)| w.pod == pod && w.container == container;
        self.held.iter().filter(of_it).map(|(w, held)| (w.resource.as_str(), held))
    }

    /// How the devices of a container are: of a plugin that is gone nobody knows, nor of one that this kubelet has not heard yet.
    pub fn health(&self, pod: &str, container: &str) -> Vec<(String, Vec<(String, Health)>)> {
        let state = |r: Option<&Resource>, id: &String| match r.filter(|r| r.heard && r.gone.is_none()) {
            None => Health::Unknown,
            Some(r) if r.devices.get(id).is_some_and(|d| d.healthy) => Health::Healthy,
            Some(_) => Health::Unhealthy,
        };
        let of_resource = |(name, held): (&str, &Held)| {
            let known = self.resources.get(name);
            (name.to_owned(), held.ids().into_iter().map(|id| (id.clone(), state(known, &id))).collect())
        };
        self.of(pod, container).map(of_resource).collect()
    }

    /// The pods that have devices.
    pub fn holders(&self) -> BTreeSet<String> {
        self.held.keys().map(|whose| whose.pod.clone()).collect()
    }

    /// What one container has of one resource.
    pub fn held(&self, whose: &Whose) -> BTreeSet<String> {
        self.held.get(whose).map(Held::ids).unwrap_or_default()
    }

    /// Takes back what pods have that are not among those that `stays` knows; whether there was any.
    pub fn take_back(&mut self, stays: impl Fn(&str) -> bool) -> bool {
        let before = self.held.len();
        self.held.retain(|whose, _| stays(&whose.pod));
        self.held.len() != before
    }

    /// What must survive the kubelet: the resources that are offered, and what containers have for good.
    pub fn lasting(&self) -> (Vec<String>, Vec<(Whose, Held)>) {
        let held = self.held.iter().filter(|(_, h)| h.answer.is_some());
        (self.resources.keys().cloned().collect(), held.map(|(w, h)| (w.clone(), h.clone())).collect())
    }

    /// All devices that work, by resource and by the part of the machine that they are near to; -1 for none.
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
