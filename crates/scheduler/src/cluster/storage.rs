//! Claims, volumes and storage classes, and how they restrict the node of a pod: where its volumes can be reached, and
//! what has to be bound or provisioned on a node (upstream `plugins/volumebinding`, `plugins/volumezone`).
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use kelson_client::Object;
use kelson_meta::ObjectKey;
use kelson_volumes::{ClaimRequirements, ClaimView, StorageClassView, VolumeView, is_bound_to};

use super::capacity::Capacities;
use crate::reason::Reason;
use crate::view::{ClaimRef, CsiDriver, CsiNode, Node, PodSpec, StorageCapacity};

/// Claims, volumes and classes by name, and the bindings in progress.
#[derive(Debug, Default)]
pub struct Storage {
    claims: HashMap<ObjectKey, Arc<ClaimView>>,
    volumes: BTreeMap<String, Arc<VolumeView>>,
    classes: BTreeMap<String, Arc<StorageClassView>>,
    capacities: Capacities,
    /// The maximum number of volumes of each driver, by node; drivers without a limit are absent.
    limits: HashMap<Box<str>, HashMap<Box<str>, usize>>,
    /// Plans in progress by the UID of their pod. Other pods must treat them as completed.
    under_way: HashMap<Arc<str>, Arc<Plan>>,
    epoch: u64,
}

/// The volumes that must be bound and provisioned before a pod may run on a node.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub node: Box<str>,
    /// Claims with the volume that each is bound to.
    pub bind: Vec<(ObjectKey, String)>,
    /// Claims whose provisioner has to create a volume for the node.
    pub provision: Vec<ObjectKey>,
}

/// The state of a pod's claims, independent of a node.
#[derive(Debug)]
pub enum Claims {
    /// No node fits, with the message for the pod's condition.
    Refused(String),
    /// The result depends on the node.
    Needs(Needs),
}

/// The requirements of a pod's claims for a node.
#[derive(Debug, Default)]
pub struct Needs {
    /// Bound volumes that the node must reach.
    bound: Vec<String>,
    /// Claims without a volume, the smallest first.
    unbound: Vec<Unbound>,
}

#[derive(Debug)]
struct Unbound {
    claim: Arc<ClaimView>,
    /// Volumes that fit the claim, the best first.
    candidates: Vec<Arc<VolumeView>>,
    provision: Provision,
}

/// The nodes on which a volume can be provisioned for a claim.
#[derive(Debug)]
enum Provision {
    Nowhere,
    /// The volume is created on the node that was selected for it. The class is `None` if a plan in progress selected
    /// the node.
    At(Box<str>, Option<Arc<StorageClassView>>),
    /// The nodes that the topology of its storage class allows.
    By(Arc<StorageClassView>),
}

/// The progress of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The binder or a provisioner has not finished.
    Waits,
    /// All claims are bound as planned.
    Done,
    /// The plan cannot complete; the reason.
    Failed(String),
}

impl Needs {
    /// Reports whether the pod has no claims.
    pub fn is_empty(&self) -> bool {
        self.bound.is_empty() && self.unbound.is_empty()
    }

    /// Returns the plan for this node, or the reasons against the node.
    pub fn place(&self, storage: &Storage, node: &Node) -> Result<Plan, Vec<Reason>> {
        let mut against: Vec<Reason> = storage.reachable(&self.bound, node).into_iter().collect();
        let mut plan = Plan { node: node.name.clone(), ..Plan::default() };
        let mut taken: HashSet<&str> = HashSet::new();
        let label = |k: &str| node.labels.get(k).map(String::as_str);
        for want in &self.unbound {
            let free =
                |v: &&Arc<VolumeView>| !taken.contains(v.metadata.name.as_str()) && v.is_reachable(&node.name, label);
            if let Some(volume) = want.candidates.iter().find(free) {
                taken.insert(&volume.metadata.name);
                plan.bind.push((want.claim.metadata.key(), volume.metadata.name.clone()));
                continue;
            }
            let (here, class) = match &want.provision {
                Provision::Nowhere => (false, None),
                Provision::At(there, class) => (*there == node.name, class.as_ref()),
                Provision::By(class) => (true, Some(class)),
            };
            if !here || class.is_some_and(|class| !class.allows(label)) {
                against.push(Reason::VOLUME_NOT_FOUND);
                break;
            }
            if class.is_some_and(|class| !storage.capacities.suffice(class, &want.claim, &node.labels)) {
                against.push(Reason::VOLUME_NO_ROOM);
                break;
            }
            plan.provision.push(want.claim.metadata.key());
        }
        if against.is_empty() { Ok(plan) } else { Err(against) }
    }
}

impl Plan {
    /// Reports whether nothing is left to do.
    pub fn is_empty(&self) -> bool {
        self.bind.is_empty() && self.provision.is_empty()
    }
}

/// Reports whether a version of an object is older than the known one. Answers to writes and watch events arrive in any
/// order.
fn is_older<T: Object>(new: &T, known: Option<&Arc<T>>) -> bool {
    let version = |o: &T| o.resource_version().parse::<u64>().unwrap_or(u64::MAX);
    known.is_some_and(|old| old.uid() == new.uid() && version(old) > version(new))
}

impl Storage {
    /// Returns a number that changes with any claim, volume, class or driver.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Stores a claim, or removes it when `claim` is `None`.
    pub fn put_claim(&mut self, key: ObjectKey, claim: Option<ClaimView>) {
        self.epoch += 1;
        match claim {
            Some(c) if is_older(&c, self.claims.get(&key)) => {}
            Some(c) => drop(self.claims.insert(key, Arc::new(c))),
            None => drop(self.claims.remove(&key)),
        }
    }

    /// Stores a volume, or removes it when `volume` is `None`.
    pub fn put_volume(&mut self, name: &str, volume: Option<VolumeView>) {
        self.epoch += 1;
        match volume {
            Some(v) if is_older(&v, self.volumes.get(name)) => {}
            Some(v) => drop(self.volumes.insert(name.to_owned(), Arc::new(v))),
            None => drop(self.volumes.remove(name)),
        }
    }

    /// Stores a class, or removes it when `class` is `None`.
    pub fn put_class(&mut self, name: &str, class: Option<StorageClassView>) {
        self.epoch += 1;
        match class {
            Some(c) => self.classes.insert(name.to_owned(), Arc::new(c)),
            None => self.classes.remove(name),
        };
    }

    /// Stores a driver, or removes it when `driver` is `None`.
    pub fn put_driver(&mut self, name: &str, driver: Option<&CsiDriver>) {
        self.epoch += 1;
        self.capacities.put_driver(name, driver);
    }

    /// Stores the capacity of a driver, or removes it when `capacity` is `None`.
    pub fn put_capacity(&mut self, key: ObjectKey, capacity: Option<&StorageCapacity>) {
        self.epoch += 1;
        self.capacities.put_room(key, capacity);
    }

    /// Stores the limits that drivers publish for a node, or removes them when `node` is `None`.
    pub fn put_csi_node(&mut self, name: &str, node: Option<&CsiNode>) {
        self.epoch += 1;
        let limit =
            |d: &crate::view::CsiNodeDriver| Some((d.name.clone(), usize::try_from(d.allocatable.count?).ok()?));
        match node {
            Some(n) => drop(self.limits.insert(name.into(), n.spec.drivers.iter().filter_map(limit).collect())),
            None => drop(self.limits.remove(name)),
        }
    }

    /// Returns the maximum number of volumes of each driver on a node, where there is a limit.
    pub fn limits(&self, node: &str) -> Option<&HashMap<Box<str>, usize>> {
        self.limits.get(node).filter(|l| !l.is_empty())
    }

    /// The CSI volumes of a spec's claims, bound or to be provisioned: the driver, and a handle that identifies the
    /// volume for that driver.
    pub fn driver_volumes<'a>(&'a self, spec: &'a PodSpec) -> impl Iterator<Item = (String, String)> + 'a {
        spec.claims.iter().filter_map(|c| {
            let claim = self.claims.get(&ObjectKey::new(&*spec.namespace, &*c.name))?;
            if claim.spec.volume_name.is_empty() {
                let class = self.classes.get(claim.class()).filter(|c| c.is_provisioned())?;
                return Some((class.provisioner.clone(), format!("{}/{}", spec.namespace, c.name)));
            }
            let csi = self.volumes.get(&claim.spec.volume_name)?.spec.csi.as_ref()?;
            Some((csi.driver.clone(), csi.volume_handle.clone()))
        })
    }

    /// Stores the API server's answer to a write of ours. A claim that was deleted meanwhile stays deleted.
    pub fn wrote_claim(&mut self, claim: ClaimView) {
        let key = claim.metadata.key();
        if self.claims.contains_key(&key) {
            self.put_claim(key, Some(claim));
        }
    }

    /// Stores the API server's answer to a write of a volume, as [`Self::wrote_claim`] does for a claim.
    pub fn wrote_volume(&mut self, volume: VolumeView) {
        let name = volume.metadata.name.clone();
        if self.volumes.contains_key(&name) {
            self.put_volume(&name, Some(volume));
        }
    }

    pub fn claim(&self, key: &ObjectKey) -> Option<&Arc<ClaimView>> {
        self.claims.get(key)
    }

    pub fn volume(&self, name: &str) -> Option<&Arc<VolumeView>> {
        self.volumes.get(name)
    }

    /// Counts a plan as completed, until it is given up or visible in the objects.
    pub fn begin(&mut self, pod: &Arc<str>, plan: Arc<Plan>) {
        self.epoch += 1;
        self.under_way.insert(Arc::clone(pod), plan);
    }

    /// Ends the plan of a pod that was bound or given up. Returns whether there was one.
    pub fn end(&mut self, pod: &str) -> bool {
        let ended = self.under_way.remove(pod).is_some();
        self.epoch += u64::from(ended);
        ended
    }

    /// Checks the claims of a pod, independent of a node.
    pub fn claims(&self, spec: &PodSpec) -> Claims {
        let (mut needs, mut waiting, mut immediate) = (Needs::default(), Vec::new(), false);
        for c in &spec.claims {
            match self.found(&spec.namespace, c) {
                Err(message) => return Claims::Refused(message),
                Ok(claim) if claim.is_fully_bound() => needs.bound.push(claim.spec.volume_name.clone()),
                Ok(claim) => match self.class_to_wait_by(claim) {
                    Some(class) => waiting.push((claim, class)),
                    None => immediate = true,
                },
            }
        }
        if immediate {
            return Claims::Refused("pod has unbound immediate PersistentVolumeClaims".into());
        }
        waiting.sort_by_key(|(claim, _)| claim.requested());
        waiting.dedup_by(|a, b| a.0.metadata.name == b.0.metadata.name);
        needs.unbound = waiting.into_iter().map(|(claim, class)| self.unbound(claim, class)).collect();
        Claims::Needs(needs)
    }

    fn found(&self, namespace: &str, c: &ClaimRef) -> Result<&Arc<ClaimView>, String> {
        let name = &*c.name;
        let Some(claim) = self.claims.get(&ObjectKey::new(namespace, name)) else {
            return Err(if c.made_for.is_some() {
                format!("waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\"")
            } else {
                format!("persistentvolumeclaim \"{name}\" not found")
            });
        };
        if let Some((pod, uid)) = &c.made_for
            && claim.metadata.controller().is_none_or(|owner| *owner.uid != **uid)
        {
            let whose = format!("PVC {namespace}/{name} was not created for pod {namespace}/{pod}");
            return Err(format!("{whose} (pod is not owner)"));
        }
        if claim.status.phase == "Lost" {
            let volume = &claim.spec.volume_name;
            return Err(format!(
                "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
            ));
        }
        if claim.metadata.is_deleting() {
            return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
        }
        Ok(claim)
    }

    /// The class of a claim with `WaitForFirstConsumer`. A claim that names its volume is bound immediately.
    fn class_to_wait_by(&self, claim: &ClaimView) -> Option<&Arc<StorageClassView>> {
        let class = self.classes.get(claim.class())?;
        (claim.spec.volume_name.is_empty() && class.waits_for_consumer()).then_some(class)
    }

    fn unbound(&self, claim: &Arc<ClaimView>, class: &Arc<StorageClassView>) -> Unbound {
        let key = claim.metadata.key();
        let want = |candidates, provision| Unbound { claim: Arc::clone(claim), candidates, provision };
        for plan in self.under_way.values() {
            if let Some((_, volume)) = plan.bind.iter().find(|(c, _)| *c == key) {
                return want(self.volumes.get(volume).cloned().into_iter().collect(), Provision::Nowhere);
            }
            if plan.provision.contains(&key) {
                return want(Vec::new(), Provision::At(plan.node.clone(), None));
            }
        }
        if let Some(node) = claim.selected_node() {
            return want(Vec::new(), Provision::At(node.into(), Some(Arc::clone(class))));
        }
        let wanted = ClaimRequirements::by(claim);
        if let Some(kept) = self.volumes.values().find(|v| wanted.is_kept(v)) {
            return want(vec![Arc::clone(kept)], Provision::Nowhere);
        }
        let promised: HashSet<&str> =
            self.under_way.values().flat_map(|p| &p.bind).map(|(_, volume)| volume.as_str()).collect();
        let free = self.volumes.values().filter(|v| !promised.contains(v.metadata.name.as_str()));
        let mut candidates: Vec<_> = free.filter(|v| wanted.is_suited(v)).cloned().collect();
        candidates.sort_by(|a, b| kelson_volumes::rank(a).cmp(&kelson_volumes::rank(b)));
        want(candidates, if class.is_provisioned() { Provision::By(Arc::clone(class)) } else { Provision::Nowhere })
    }

    /// Why bound volumes cannot be reached from a node, if they cannot.
    fn reachable(&self, volumes: &[String], node: &Node) -> Option<Reason> {
        let label = |k: &str| node.labels.get(k).map(String::as_str);
        for name in volumes {
            let Some(volume) = self.volumes.get(name) else {
                return Some(Reason::VOLUME_MISSING);
            };
            if !volume.is_reachable(&node.name, label) {
                return Some(Reason::VOLUME_NODE_CONFLICT);
            }
            if zone_conflict(volume, node) {
                return Some(Reason::VOLUME_ZONE);
            }
        }
        None
    }

    /// Returns the progress of a plan for a node, if the node still exists.
    pub fn progress(&self, plan: &Plan, node: Option<&Node>) -> Progress {
        let mut waits = false;
        let made = plan.provision.iter().map(|claim| (claim, None));
        for (key, volume) in plan.bind.iter().map(|(claim, volume)| (claim, Some(volume))).chain(made) {
            let Some(claim) = self.claims.get(key) else {
                return Progress::Failed(format!("persistentvolumeclaim {:?} not found", key.name));
            };
            match self.progress_of(claim, volume, &plan.node, node) {
                Progress::Done => {}
                Progress::Waits => waits = true,
                failed @ Progress::Failed(_) => return failed,
            }
        }
        if waits { Progress::Waits } else { Progress::Done }
    }

    fn progress_of(&self, claim: &ClaimView, wanted: Option<&String>, name: &str, node: Option<&Node>) -> Progress {
        let of = &claim.metadata.name;
        if claim.is_fully_bound() {
            let has = &claim.spec.volume_name;
            if wanted.is_some_and(|w| w != has) {
                return Progress::Failed(format!("claim {of:?} was bound to another volume, {has:?}"));
            }
            let (Some(volume), Some(node)) = (self.volumes.get(has), node) else { return Progress::Waits };
            if !volume.is_reachable(&node.name, |k| node.labels.get(k).map(String::as_str)) {
                return Progress::Failed(format!("pv {has:?} node affinity doesn't match node {name:?}"));
            }
            return Progress::Done;
        }
        match wanted {
            None if claim.selected_node() != Some(name) => {
                Progress::Failed(format!("selectedNode annotation reset for PVC {of:?}"))
            }
            Some(w) if !self.volumes.get(w).is_some_and(|v| is_bound_to(v, claim)) => {
                Progress::Failed(format!("volume {w:?} is no longer claim {of:?}'s"))
            }
            _ => Progress::Waits,
        }
    }
}

/// Reports whether the zone labels of a volume exclude the node (upstream `plugins/volumezone`). A value may list zones
/// joined by `__`.
fn zone_conflict(volume: &VolumeView, node: &Node) -> bool {
    const KEYS: [&str; 4] = [
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    ];
    // Nodes without any such label count as one zone.
    if !KEYS.iter().any(|k| node.labels.contains_key(*k)) {
        return false;
    }
    KEYS.iter().any(|k| {
        let Some(allowed) = volume.metadata.labels.get(*k) else { return false };
        let stable = k.replace("failure-domain.beta.kubernetes.io", "topology.kubernetes.io");
        let has = node.labels.get(*k).or_else(|| node.labels.get(&stable));
        !has.is_some_and(|v| allowed.split("__").any(|a| a == v))
    })
}
