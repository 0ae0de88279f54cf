//! Which devices there are and which container has which. Pure: it is told what plugins say, and by the hour.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::messages::{ContainerAllocation, Device, PluginOptions};

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
    /// What nobody has.
    pub free: Vec<String>,
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

    /// What its plugin wants to be asked.
    pub fn options(&self, resource: &str) -> PluginOptions {
        self.resources.get(resource).map(|r| r.options).unwrap_or_default()
    }

    /// What a container may be given. `own` is what the pod's steps before it had. A container that is made anew keeps what it
    /// has, if that works still and `starts_anew` says that it must.
    ///
    /// # Errors
    /// Why it cannot have so many, in upstream's words.
    pub fn offer(
        &self,
        whose: &Whose,
        wanted: usize,
        own: &BTreeSet<String>,
        starts_anew: bool,
    ) -> Result<Offer, String> {
        let name = &whose.resource;
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
        let own: Vec<String> = own.iter().take(wanted).cloned().collect();
        let free: Vec<String> = well.into_iter().filter(|id| !taken.contains(*id)).cloned().collect();
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
            is_asked: needed > 0 && resource.options.get_preferred_allocation_available,
        }))
    }

    /// Gives a container devices: the pod's own first, then preferred ones, then any that are free. They are its from now on.
    ///
    /// # Errors
    /// As of [`Table::offer`]: others may have come first.
    pub fn give(
        &mut self,
        whose: &Whose,
        wanted: usize,
        own: &BTreeSet<String>,
        preferred: &[String],
    ) -> Result<Vec<String>, String> {
        let Offer::From(choice) = self.offer(whose, wanted, own, false)? else { return Ok(Vec::new()) };
        let mut ids: Vec<String> = choice.own;
        let liked = preferred.iter().filter(|id| choice.free.contains(id));
        for id in liked.chain(&choice.free) {
            if ids.len() < wanted && !ids.contains(id) {
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
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::devices::messages::{NumaNode, Topology};

    const GPU: &str = "example.com/gpu";

    fn at(second: u64) -> Instant {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        *BEGAN + Duration::from_secs(second)
    }

    fn devices(text: &str) -> Vec<Device> {
        let device = |word: &str| {
            let (id, part) = word.trim_end_matches('!').split_once('@').unwrap_or((word.trim_end_matches('!'), ""));
            let topology = part.parse().ok().map(|id| Topology { nodes: vec![NumaNode { id }] });
            let health = if word.ends_with('!') { "Unhealthy" } else { "Healthy" };
            Device { id: id.to_owned(), health: health.to_owned(), topology }
        };
        text.split_whitespace().map(device).collect()
    }

    fn table(text: &str) -> Table {
        let mut table = Table::default();
        table.registered(GPU, PluginOptions::default()).expect("room");
        assert!(table.listed(GPU, devices(text)));
        table
    }

    fn whose(pod: &str, container: &str) -> Whose {
        Whose { pod: pod.to_owned(), container: container.to_owned(), resource: GPU.to_owned() }
    }

    fn give(table: &mut Table, pod: &str, wanted: usize, preferred: &[&str]) -> Result<String, String> {
        let preferred: Vec<String> = preferred.iter().map(|p| (*p).to_owned()).collect();
        table.give(&whose(pod, "c"), wanted, &BTreeSet::new(), &preferred).map(|ids| ids.join(" "))
    }

    #[test]
    fn no_device_is_given_twice() {
        let mut t = table("a b c! d");
        assert_eq!(
            give(&mut t, "p", 2, &["d", "c", "nothing"]).as_deref(),
            Ok("d a"),
            "what works and is preferred first"
        );
        assert_eq!(
            give(&mut t, "q", 2, &["a"]),
            Err("requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1".into())
        );
        assert_eq!(give(&mut t, "q", 1, &["a"]).as_deref(), Ok("b"));
        assert_eq!(give(&mut t, "p", 2, &[]).as_deref(), Ok(""), "it has them");
        assert!(give(&mut t, "p", 1, &[]).is_err_and(|e| e.ends_with("\"example.com/gpu\" from 2 to 1")));
        // A plugin that refuses gets nothing taken.
        t.settled(&whose("q", "c"), None);
        assert!(t.take_back(|pod| pod == "q") && !t.take_back(|_| true));
        assert_eq!(give(&mut t, "r", 3, &[]).as_deref(), Ok("a b d"));
    }

    #[test]
    fn a_container_takes_first_what_the_steps_before_it_had() {
        let mut t = table("a b c");
        assert_eq!(t.give(&whose("p", "init"), 2, &BTreeSet::new(), &[]).expect("free"), ["a", "b"]);
        let own = t.held(&whose("p", "init"));
        assert_eq!(t.give(&whose("p", "c"), 3, &own, &["c".to_owned()]).expect("enough"), ["a", "b", "c"]);
        assert!(t.offer(&whose("q", "c"), 1, &BTreeSet::new(), false).is_err());
    }

    #[test]
    fn what_there_is_follows_the_plugin() {
        let mut t = table("a b c!");
        let amount = |capacity, allocatable| DeviceCount { capacity, allocatable };
        assert_eq!(t.amounts(at(0))[GPU], amount(3, 2));
        assert!(!t.listed(GPU, devices("a b c!")) && t.listed(GPU, devices("a b")));
        assert!(!t.listed("example.com/unheard", devices("a")));
        t.gone(GPU, at(100));
        t.gone(GPU, at(200));
        assert_eq!(t.amounts(at(399))[GPU], amount(2, 0));
        assert_eq!(t.amounts(at(400))[GPU], amount(0, 0), "five minutes after it went");
        let none = "no healthy devices present; cannot allocate unhealthy devices example.com/gpu";
        assert_eq!(give(&mut t, "p", 1, &[]), Err(none.into()));
        t.registered(GPU, PluginOptions::default()).expect("room");
        t.listed(GPU, devices("a"));
        assert_eq!(t.amounts(at(500))[GPU], amount(1, 1));
    }

    #[test]
    fn what_was_held_is_held_by_the_next_kubelet() {
        let mut t = table("a@1 b");
        give(&mut t, "p", 2, &[]).expect("enough");
        assert!(t.lasting().1.is_empty(), "nothing lasts before the plugin has answered");
        t.settled(&whose("p", "c"), Some(ContainerAllocation::default()));
        let (resources, held) = t.lasting();
        let near = |of: &[(i64, &str)]| -> BTreeMap<i64, BTreeSet<String>> {
            of.iter().map(|(part, id)| (*part, BTreeSet::from([(*id).to_owned()]))).collect()
        };
        assert_eq!(held[0].1.near, near(&[(-1, "b"), (1, "a")]));

        let mut next = Table::remembered(resources, held.into_iter().collect(), at(0));
        assert_eq!(next.amounts(at(1))[GPU], DeviceCount::default(), "till the plugin registers again");
        let has = |t: &Table, anew| t.offer(&whose("p", "c"), 2, &BTreeSet::new(), anew);
        assert_eq!(has(&next, false), Ok(Offer::Has), "a container that runs needs nothing");
        assert_eq!(has(&next, true), Err("cannot allocate unregistered device example.com/gpu".into()));
        next.registered(GPU, PluginOptions::default()).expect("room");
        next.listed(GPU, devices("a b!"));
        let ill =
            "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu";
        assert_eq!(has(&next, true), Err(ill.into()));
        next.listed(GPU, devices("a b c"));
        assert_eq!(has(&next, true), Ok(Offer::Has));
        assert_eq!(
            next.offer(&whose("q", "c"), 1, &BTreeSet::new(), false)
                .map(|o| matches!(o, Offer::From(c) if c.free == ["c"])),
            Ok(true)
        );
    }
}
