//! ResourceClaims, the devices that drivers publish, and the devices that are allocated: those in the status of a
//! claim, and those of plans whose writes have not been seen yet.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kelson_client::Object as _;
use kelson_devices::allocate::{AllocationError, Allocator, ClaimRequest, Classes, Stock};
use kelson_devices::{
    Allocation, DeviceClassView, DevicesInUse, ExtendedClaim, Host, Inventory, Readiness, ResourceClaimView,
    ResourceSliceView, Selectors, by_extended_resource, names, readiness,
};
use kelson_meta::ObjectKey;
use serde_json::Value;

use super::extended::ExtendedNeeds;
use crate::view::{DeviceRef, Node, PodSpec};

/// ResourceClaims, ResourceSlices and DeviceClasses of the cluster, with the allocations that are about to be written.
#[derive(Debug, Default)]
pub struct Devices {
    claims: HashMap<ObjectKey, Arc<ResourceClaimView>>,
    inventory: Inventory,
    classes: Classes,
    selectors: Selectors,
    taken: DevicesInUse,
    /// Allocations that are about to be written, by the UID of the claim.
    pending: HashMap<Box<str>, Allocation>,
    /// UIDs of claims whose devices were not ready in time.
    overdue: HashSet<Box<str>>,
    /// The claim that was made for extended resources, by the UID of the pod.
    extended: HashMap<Box<str>, ObjectKey>,
    epoch: u64,
    class_epoch: u64,
    /// Set when the feature is off: no class maps to an extended resource.
    without_extended: bool,
}

/// The writes for a pod before it is bound.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    /// All claims of the pod, each once.
    pub claims: Vec<ClaimPlan>,
    /// The claim to create for the pod's extended resources.
    pub extended: Option<ExtendedPlan>,
}

impl DevicePlan {
    /// Reports whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.extended.is_none()
    }
}

/// A claim to create for extended resources, with its allocation.
#[derive(Clone, Debug)]
pub struct ExtendedPlan {
    /// A provisional UID, until the API server has assigned one.
    pub uid: String,
    /// Value of the claim's `spec.devices.requests`.
    pub requests: Value,
    /// The request of each container and resource, for the pod's status.
    pub mappings: Value,
    /// Value of the claim's `status.allocation`.
    pub allocation: Value,
}

/// The allocation of one claim.
#[derive(Clone, Debug)]
pub struct ClaimPlan {
    pub key: ObjectKey,
    pub uid: String,
    /// Value of `status.allocation`; `None` when the claim is allocated already.
    pub allocation: Option<Value>,
}

/// The effect of a claim's change on waiting pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimChange {
    /// Its devices were released: they may help any pod.
    Freed,
    /// It can only help pods that use this claim.
    Own,
    /// It helps no pod.
    Nothing,
}

impl Devices {
    /// Returns a number that changes with any claim, slice or class.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns a number that changes with any class.
    pub fn class_epoch(&self) -> u64 {
        self.class_epoch
    }

    /// Stops mapping classes to extended resources.
    pub fn without_extended(&mut self) {
        self.without_extended = true;
    }

    /// Returns the name of the class that maps to an extended resource.
    pub fn class_of(&self, resource: &str) -> Option<&str> {
        if self.without_extended {
            return None;
        }
        let class = by_extended_resource(self.classes.values().map(|c| &**c), resource);
        class.map(|c| c.metadata.name.as_str())
    }

    /// Returns the extended resources a pod requests that a class maps to; `None` when there are none.
    pub fn extended_needs(&self, spec: &PodSpec) -> Option<ExtendedNeeds> {
        ExtendedNeeds::new(spec, |resource| self.class_of(resource))
    }

    /// Returns the claim that was made for the extended resources of a pod.
    pub fn extended_claim_of(&self, uid: &str) -> Option<&ObjectKey> {
        self.extended.get(uid)
    }

    /// Stores a claim, or removes it when `claim` is `None`.
    pub fn put_claim(&mut self, key: ObjectKey, claim: Option<Arc<ResourceClaimView>>) -> ClaimChange {
        let old = self.claims.get(&key);
        let version = |c: &ResourceClaimView| c.resource_version().parse::<u64>().unwrap_or(u64::MAX);
        if let (Some(old), Some(new)) = (old, &claim)
            && old.uid() == new.uid()
            && version(old) > version(new)
        {
            return ClaimChange::Nothing;
        }
        self.epoch += 1;
        let old = self.claims.remove(&key);
        let had = old.as_ref().and_then(|c| c.status.allocation.as_ref());
        let has = claim.as_ref().and_then(|c| c.status.allocation.as_ref());
        let what = match (&old, &claim) {
            _ if had.is_some() && has.is_none() => ClaimChange::Freed,
            (Some(old), Some(new)) if old.uid() == new.uid() && old.status == new.status => ClaimChange::Nothing,
            _ => ClaimChange::Own,
        };
        self.note_extended(&key, old.as_deref(), claim.as_deref());
        if let Some(had) = had {
            self.taken.remove(had);
        }
        if let Some(old) = old.as_ref().filter(|_| has.is_none()) {
            self.overdue.remove(old.uid());
        }
        if let Some(has) = has {
            self.taken.add(has);
        }
        if let Some(claim) = claim {
            if claim.status.allocation.is_some() {
                self.no_longer_pending(claim.uid());
            }
            self.claims.insert(key, claim);
        } else if let Some(old) = old {
            self.no_longer_pending(old.uid());
        }
        what
    }

    fn note_extended(&mut self, key: &ObjectKey, old: Option<&ResourceClaimView>, new: Option<&ResourceClaimView>) {
        let owner = |c: Option<&ResourceClaimView>| Some(extended_owner(c?)?.to_owned().into_boxed_str());
        if let Some(uid) = owner(old).filter(|uid| self.extended.get(uid) == Some(key)) {
            self.extended.remove(&uid);
        }
        if let Some(uid) = owner(new) {
            self.extended.insert(uid, key.clone());
        }
    }

    /// Stores the API server's answer to a write of ours. A claim that was deleted meanwhile stays deleted.
    pub fn wrote_claim(&mut self, claim: ResourceClaimView) {
        let key = claim.metadata.key();
        if self.claims.contains_key(&key) {
            self.put_claim(key, Some(Arc::new(claim)));
        }
    }

    /// Stores a claim that this scheduler created and that the watch may not have delivered yet.
    pub fn made_claim(&mut self, claim: ResourceClaimView) {
        self.put_claim(claim.metadata.key(), Some(Arc::new(claim)));
    }

    /// Stores a slice, or removes it when `slice` is `None`.
    pub fn put_slice(&mut self, name: &str, slice: Option<Arc<ResourceSliceView>>) {
        self.epoch += 1;
        self.inventory.put(name, slice);
    }

    /// Stores a class, or removes it when `class` is `None`.
    pub fn put_class(&mut self, name: &str, class: Option<Arc<DeviceClassView>>) {
        self.epoch += 1;
        self.class_epoch += 1;
        match class {
            Some(class) => self.classes.insert(name.into(), class),
            None => self.classes.remove(name),
        };
    }

    pub fn claim(&self, key: &ObjectKey) -> Option<&Arc<ResourceClaimView>> {
        self.claims.get(key)
    }

    fn no_longer_pending(&mut self, uid: &str) {
        if let Some(allocation) = self.pending.remove(uid) {
            self.taken.remove(&allocation);
        }
    }

    /// Counts the devices of a plan as allocated, until its claims show them or [`Self::end`] is called.
    pub fn begin(&mut self, plan: &DevicePlan) {
        let own = plan.claims.iter().filter_map(|c| Some((&c.uid, c.allocation.as_ref()?)));
        for (uid, allocation) in own.chain(plan.extended.iter().map(|e| (&e.uid, &e.allocation))) {
            let Ok(allocation) = serde_json::from_value(allocation.clone()) else { continue };
            self.epoch += 1;
            self.taken.add(&allocation);
            self.pending.insert(uid.as_str().into(), allocation);
        }
    }

    /// Ends a plan: it was written, or given up.
    pub fn end(&mut self, plan: &DevicePlan) {
        for uid in plan.claims.iter().map(|c| &c.uid).chain(plan.extended.iter().map(|e| &e.uid)) {
            if self.pending.contains_key(uid.as_str()) {
                self.epoch += 1;
                self.no_longer_pending(uid);
            }
        }
    }

    /// Records that the devices of a claim were not ready in time. The record is dropped when the claim is deallocated.
    pub fn note_overdue(&mut self, uid: &str) {
        self.epoch += 1;
        self.overdue.insert(uid.into());
    }

    /// Reports whether a pod must wait because one of its claims does not exist (PreEnqueue).
    pub fn holds(&self, spec: &PodSpec) -> bool {
        !spec.devices.is_empty() && self.claims_of(spec).is_err()
    }

    /// Returns the claims of a pod, each once.
    ///
    /// # Errors
    /// The message for the pod's condition when the pod cannot be scheduled because of a claim.
    pub fn claims_of(&self, spec: &PodSpec) -> Result<Vec<&Arc<ResourceClaimView>>, String> {
        let mut out: Vec<&Arc<ResourceClaimView>> = Vec::new();
        for device in &spec.devices {
            let claim = self.found(&spec.namespace, device)?;
            if !out.iter().any(|known| Arc::ptr_eq(known, claim)) {
                out.push(claim);
            }
        }
        Ok(out)
    }

    fn found(&self, namespace: &str, device: &DeviceRef) -> Result<&Arc<ResourceClaimView>, String> {
        let pod = &device.pod;
        let Some(name) = device.claim.as_deref() else {
            return Err(format!("pod \"{namespace}/{pod}\": ResourceClaim not created yet"));
        };
        let missing = || format!("resourceclaim.resource.k8s.io \"{name}\" not found");
        let claim = self.claims.get(&ObjectKey::new(namespace, name)).ok_or_else(missing)?;
        if claim.metadata.is_deleting() {
            return Err(format!("resourceclaim {name:?} is being deleted"));
        }
        let owner = claim.metadata.controller().map(|o| o.uid.as_str());
        if device.owner.as_ref().is_some_and(|uid| owner != Some(&**uid)) {
            let whose = format!("ResourceClaim {namespace}/{name} was not created for Pod {namespace}/{pod}");
            return Err(format!("{whose} (Pod is not owner)"));
        }
        Ok(claim)
    }

    /// Reports whether an allocation of this claim is about to be written.
    pub fn is_pending(&self, uid: &str) -> bool {
        self.pending.contains_key(uid)
    }

    /// Reports whether a class of this name exists.
    pub fn has_class(&self, name: &str) -> bool {
        self.classes.contains_key(name)
    }

    /// Reports whether the devices allocated to a claim can be used on a node, now or after a driver has prepared them.
    pub fn is_usable(&self, claim: &ResourceClaimView, node: &Node) -> bool {
        let Some(allocation) = &claim.status.allocation else { return true };
        let host = host(node);
        allocation.node_selector.as_ref().is_none_or(|s| host.is_selected(s))
            && match readiness(claim) {
                Readiness::Ready => true,
                Readiness::Waits => !self.overdue.contains(claim.uid()),
                Readiness::Failed(_) => false,
            }
    }

    /// Returns the score of the devices that a node has for claims without an allocation, including a claim to be
    /// created; `None` when the node does not have enough.
    pub fn score(
        &self,
        claims: &[Arc<ResourceClaimView>],
        more: Option<ClaimRequest<'_>>,
        node: &Node,
    ) -> Result<Option<i64>, AllocationError> {
        self.solve(claims, more, node, |solution| solution.score())
    }

    /// Returns how much of an extended resource drivers offer on a node, if a class maps to the resource.
    pub fn stock(&self, resource: &str, node: &Node) -> Option<Stock> {
        let class = self.classes.get(self.class_of(resource)?)?;
        match self.allocator().stock(host(node), class) {
            Ok(stock) => Some(stock).filter(|stock| stock.devices > 0),
            Err(error) => {
                tracing::debug!(node = %node.name, resource, %error, "counting devices failed");
                None
            }
        }
    }

    fn allocator(&self) -> Allocator<'_> {
        Allocator { inventory: &self.inventory, taken: &self.taken, classes: &self.classes, selectors: &self.selectors }
    }

    fn solve<T>(
        &self,
        claims: &[Arc<ResourceClaimView>],
        more: Option<ClaimRequest<'_>>,
        node: &Node,
        of: impl FnOnce(&kelson_devices::allocate::Solution<'_>) -> T,
    ) -> Result<Option<T>, AllocationError> {
        let named: Vec<(String, &ResourceClaimView)> =
            without_devices(claims).map(|c| (format!("{}/{}", c.metadata.namespace, c.metadata.name), &**c)).collect();
        let wishes = named.iter().map(|(claim, c)| ClaimRequest { claim, spec: &c.spec });
        let wishes: Vec<ClaimRequest<'_>> = wishes.chain(more).collect();
        let solution = self.allocator().allocate(host(node), &wishes)?;
        Ok(solution.as_ref().map(of))
    }

    /// Returns what has to be written for a pod on a node (Reserve); `None` when the node no longer has enough.
    pub fn plan(&self, spec: &PodSpec, node: &Node) -> Option<DevicePlan> {
        let claims: Vec<Arc<ResourceClaimView>> = self.claims_of(spec).ok()?.into_iter().cloned().collect();
        let needs = self.extended_needs(spec);
        let made = match &needs {
            Some(needs) => Some((&needs.claim, needs.on(node).ok()?)).filter(|(_, made)| !made.is_empty()),
            None => None,
        };
        let made = made.map(|(claim, made)| (claim, made.spec(), made));
        let wish = made.as_ref().map(|(claim, spec, _)| ClaimRequest { claim, spec });
        let mut results = self.solve(&claims, wish, node, |s| s.results(new_uid)).ok()??.into_iter();
        let planned = claims.iter().map(|c| ClaimPlan {
            key: c.metadata.key(),
            uid: c.metadata.uid.clone(),
            allocation: if c.status.allocation.is_none() { results.next() } else { None },
        });
        let claims = planned.collect();
        let extended = |made: &ExtendedClaim, allocation: Value| ExtendedPlan {
            uid: new_uid(),
            requests: made.requests(),
            mappings: made.mappings(),
            allocation,
        };
        // The result of the claim to be created is the last one.
        let extended = made.as_ref().zip(results.next()).map(|((.., made), allocation)| extended(made, allocation));
        Some(DevicePlan { claims, extended })
    }

    /// Returns the progress of a plan after its allocations were written; `made` is the claim that was created.
    pub fn progress(&self, plan: &DevicePlan, made: Option<&ClaimPlan>) -> Readiness {
        let mut waits = false;
        for planned in plan.claims.iter().chain(made) {
            let Some(claim) = self.claims.get(&planned.key).filter(|c| c.metadata.uid == planned.uid) else {
                return Readiness::Failed(format!("resourceclaim.resource.k8s.io {:?} not found", planned.key.name));
            };
            match readiness(claim) {
                Readiness::Ready => {}
                Readiness::Waits => waits = true,
                failed @ Readiness::Failed(_) => return failed,
            }
        }
        if waits { Readiness::Waits } else { Readiness::Ready }
    }

    /// Returns a claim of the pod that can be deallocated: its devices cannot be used on some node, and no other pod
    /// uses it.
    pub fn to_free(&self, spec: &PodSpec, uid: &str, nodes: impl Iterator<Item = Arc<Node>>) -> Option<ObjectKey> {
        let claims = self.claims_of(spec).ok()?;
        let alone = |c: &ResourceClaimView| c.status.reserved_for.iter().all(|r| r.uid == uid);
        let held: Vec<_> = claims.into_iter().filter(|c| c.status.allocation.is_some() && alone(c)).collect();
        if held.is_empty() {
            return None;
        }
        let mut nodes = nodes;
        nodes.find_map(|node| held.iter().find(|c| !self.is_usable(c, &node)).map(|c| c.metadata.key()))
    }
}

/// Returns the UID of the pod for whose extended resources a claim was made.
pub fn extended_owner(claim: &ResourceClaimView) -> Option<&str> {
    let marked = claim.metadata.annotations.get(names::EXTENDED_RESOURCE_CLAIM).is_some_and(|v| v == "true");
    marked.then(|| claim.owning_pod().map(|(_, uid)| uid))?
}

fn host(node: &Node) -> Host<'_> {
    Host { name: &node.name, labels: &node.labels }
}

/// Claims without an allocation.
fn without_devices(claims: &[Arc<ResourceClaimView>]) -> impl Iterator<Item = &Arc<ResourceClaimView>> {
    claims.iter().filter(|c| c.status.allocation.is_none())
}

/// Generates a random UUID (version 4).
fn new_uid() -> String {
    let bits = (rand::random::<u128>() & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
