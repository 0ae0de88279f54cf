//! Claims, volumes and storage classes, and what they say of a pod's place: where its volumes can be reached, and what would
//! have to be bound or made for it there (upstream `plugins/volumebinding`, `plugins/volumezone`).
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use kelson_client::Object;
use kelson_meta::ObjectKey;
use kelson_volumes::{ClaimView, StorageClassView, VolumeView, Wanted, is_bound_to};

use super::capacity::Capacities;
use crate::reason::Reason;
use crate::view::{ClaimRef, CsiDriver, CsiNode, Node, PodSpec, StorageCapacity};

/// Claims, volumes and classes by name, and the bindings under way.
#[derive(Debug, Default)]
pub struct Storage {
    claims: HashMap<ObjectKey, Arc<ClaimView>>,
    volumes: BTreeMap<String, Arc<VolumeView>>,
    classes: BTreeMap<String, Arc<StorageClassView>>,
    capacities: Capacities,
    /// By node: how many volumes of each driver it can have, where there is a limit.
    limits: HashMap<Box<str>, HashMap<Box<str>, usize>>,
    /// By the UID of the pod that it is done for: what others must take as done.
    under_way: HashMap<Arc<str>, Arc<Plan>>,
    epoch: u64,
}

/// What must be bound and made before a pod may go to a node.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub node: Box<str>,
    /// Claims, and the volume each is to have.
    pub bind: Vec<(ObjectKey, String)>,
    /// Claims whose provisioner is to make a volume for the node.
    pub provision: Vec<ObjectKey>,
}

/// A pod's volumes before any node is looked at.
#[derive(Debug)]
pub enum Claims {
    /// No node will do; why.
    Refused(String),
    /// It depends on the node.
    Needs(Needs),
}

/// What a pod's claims need of a node.
#[derive(Debug, Default)]
pub struct Needs {
    /// Volumes that must be reached.
    bound: Vec<String>,
    /// Claims that have none yet, the smallest first.
    unbound: Vec<Unbound>,
}

#[derive(Debug)]
struct Unbound {
    claim: Arc<ClaimView>,
    /// Volumes that would suit it, the best first.
    candidates: Vec<Arc<VolumeView>>,
    provision: Provision,
}

/// Where a volume can be made for a claim.
#[derive(Debug)]
enum Provision {
    Nowhere,
    /// It has been asked for there; by the class, unless that was a moment ago.
    At(Box<str>, Option<Arc<StorageClassView>>),
    /// Where its class allows.
    By(Arc<StorageClassView>),
}

/// How far a plan is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Somebody else has yet to do his part.
    Waits,
    /// All claims are bound as planned.
    Done,
    /// It will not come about; why.
    Failed(String),
}

impl Needs {
    /// Whether the pod has no claims.
    pub fn is_empty(&self) -> bool {
        self.bound.is_empty() && self.unbound.is_empty()
    }

    /// What is to be done for this node, or what speaks against it.
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
    /// Whether nothing is left to do.
    pub fn is_empty(&self) -> bool {
        self.bind.is_empty() && self.provision.is_empty()
    }
}

/// Whether a state of an object is older than the one that is known: own writes and the informer's word come in any order.
fn is_older<T: Object>(new: &T, known: Option<&Arc<T>>) -> bool {
    let version = |o: &T| o.resource_version().parse::<u64>().unwrap_or(u64::MAX);
    known.is_some_and(|old| old.uid() == new.uid() && version(old) > version(new))
}

impl Storage {
    /// Changes with any of them.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Learns or forgets a claim.
    pub fn put_claim(&mut self, key: ObjectKey, claim: Option<ClaimView>) {
        self.epoch += 1;
        match claim {
            Some(c) if is_older(&c, self.claims.get(&key)) => {}
            Some(c) => drop(self.claims.insert(key, Arc::new(c))),
            None => drop(self.claims.remove(&key)),
        }
    }

    /// Learns or forgets a volume.
    pub fn put_volume(&mut self, name: &str, volume: Option<VolumeView>) {
        self.epoch += 1;
        match volume {
            Some(v) if is_older(&v, self.volumes.get(name)) => {}
            Some(v) => drop(self.volumes.insert(name.to_owned(), Arc::new(v))),
            None => drop(self.volumes.remove(name)),
        }
    }

    /// Learns or forgets a class.
    pub fn put_class(&mut self, name: &str, class: Option<StorageClassView>) {
        self.epoch += 1;
        match class {
            Some(c) => self.classes.insert(name.to_owned(), Arc::new(c)),
            None => self.classes.remove(name),
        };
    }

    /// Learns or forgets a driver.
    pub fn put_driver(&mut self, name: &str, driver: Option<&CsiDriver>) {
        self.epoch += 1;
        self.capacities.put_driver(name, driver);
    }

    /// Learns or forgets how much room a driver has.
    pub fn put_capacity(&mut self, key: ObjectKey, capacity: Option<&StorageCapacity>) {
        self.epoch += 1;
        self.capacities.put_room(key, capacity);
    }

    /// Learns or forgets what drivers say of a node.
    pub fn put_csi_node(&mut self, name: &str, node: Option<&CsiNode>) {
        self.epoch += 1;
        let limit =
            |d: &crate::view::CsiNodeDriver| Some((d.name.clone(), usize::try_from(d.allocatable.count?).ok()?));
        match node {
            Some(n) => drop(self.limits.insert(name.into(), n.spec.drivers.iter().filter_map(limit).collect())),
            None => drop(self.limits.remove(name)),
        }
    }

    /// How many volumes of each driver a node can have, where there is a limit.
    pub fn limits(&self, node: &str) -> Option<&HashMap<Box<str>, usize>> {
        self.limits.get(node).filter(|l| !l.is_empty())
    }

    /// The volumes of drivers that a spec's claims have, and those that drivers are to make for them: driver, and what tells
    /// its volumes apart.
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

    /// What the API answered to a write of ours; what is gone meanwhile stays gone.
    pub fn wrote_claim(&mut self, claim: ClaimView) {
        let key = claim.metadata.key();
        if self.claims.contains_key(&key) {
            self.put_claim(key, Some(claim));
        }
    }

    /// The same of a volume.
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

    /// Takes a plan as carried out, until it is given up or seen in the objects themselves.
    pub fn begin(&mut self, pod: &Arc<str>, plan: Arc<Plan>) {
        self.epoch += 1;
        self.under_way.insert(Arc::clone(pod), plan);
    }

    /// The pod is bound, or its plan given up.
    pub fn end(&mut self, pod: &str) -> bool {
        let ended = self.under_way.remove(pod).is_some();
        self.epoch += u64::from(ended);
        ended
    }

    /// What a pod's claims allow, whatever the node.
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

    /// The class of a claim that is bound when its first consumer has a node. One that names its volume is bound at once.
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
        let wanted = Wanted::by(claim);
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

    /// How far a plan is, for a node with these labels if it is still there.
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

/// The zone labels of a volume against the node's (upstream `plugins/volumezone`); several zones are joined by `__`.
fn zone_conflict(volume: &VolumeView, node: &Node) -> bool {
    const KEYS: [&str; 4] = [
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    ];
    // Nodes without any such label are on one zone as far as anybody knows.
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
