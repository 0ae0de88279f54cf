//! Claims, volumes and storage classes, and what they say of a pod's place (upstream `plugins/volumebinding`, the part
//! without binding). A claim that waits for its first consumer is not provisioned from here yet: its pod says so.
use std::collections::{BTreeMap, HashMap};

use kelson_meta::ObjectKey;

use crate::reason::Reason;
use crate::view::{Claim, ClaimRef, Node, PodSpec, StorageClass, Volume};

const BOUND_ANNOTATION: &str = "pv.kubernetes.io/bind-completed";

/// Claims, volumes and classes by name.
#[derive(Debug, Default)]
pub struct Storage {
    claims: HashMap<ObjectKey, Claim>,
    volumes: BTreeMap<String, Volume>,
    classes: BTreeMap<String, StorageClass>,
    epoch: u64,
}

/// A pod's volumes before any node is looked at.
#[derive(Debug, PartialEq, Eq)]
pub enum Claims {
    /// They are bound to these volumes.
    Bound(Vec<String>),
    /// No node will do; why.
    Refused(String),
}

impl Storage {
    /// Changes with any of them.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
    /// Learns or forgets a claim.
    pub fn put_claim(&mut self, key: ObjectKey, claim: Option<Claim>) {
        self.epoch += 1;
        match claim {
            Some(c) => self.claims.insert(key, c),
            None => self.claims.remove(&key),
        };
    }
    /// Learns or forgets a volume.
    pub fn put_volume(&mut self, name: &str, volume: Option<Volume>) {
        self.epoch += 1;
        match volume {
            Some(v) => self.volumes.insert(name.to_owned(), v),
            None => self.volumes.remove(name),
        };
    }
    /// Learns or forgets a class.
    pub fn put_class(&mut self, name: &str, class: Option<StorageClass>) {
        self.epoch += 1;
        match class {
            Some(c) => self.classes.insert(name.to_owned(), c),
            None => self.classes.remove(name),
        };
    }

    /// What a pod's claims allow, whatever the node.
    pub fn claims(&self, spec: &PodSpec) -> Claims {
        let mut bound = Vec::with_capacity(spec.claims.len());
        let (mut immediate, mut delayed) = (false, None);
        for c in &spec.claims {
            match self.claim(&spec.namespace, c) {
                Err(message) => return Claims::Refused(message),
                Ok(claim) if is_bound(claim) => bound.push(claim.spec.volume_name.clone()),
                Ok(claim) if self.waits(claim) => delayed = delayed.or(Some(claim)),
                Ok(_) => immediate = true,
            }
        }
        if immediate {
            return Claims::Refused("pod has unbound immediate PersistentVolumeClaims".into());
        }
        if let Some(claim) = delayed {
            let name = &claim.metadata.name;
            return Claims::Refused(format!(
                "waiting for persistentvolumeclaim \"{name}\" to be bound: \
                binding at first use is not available in this version"
            ));
        }
        Claims::Bound(bound)
    }

    fn claim(&self, namespace: &str, c: &ClaimRef) -> Result<&Claim, String> {
        let name = &*c.name;
        let Some(claim) = self.claims.get(&ObjectKey::new(namespace, name)) else {
            return Err(if c.ephemeral {
                format!("waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\"")
            } else {
                format!("persistentvolumeclaim \"{name}\" not found")
            });
        };
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

    fn waits(&self, claim: &Claim) -> bool {
        let class = claim.spec.storage_class_name.as_deref().unwrap_or_default();
        claim.spec.volume_name.is_empty()
            && self.classes.get(class).is_some_and(|c| c.volume_binding_mode == "WaitForFirstConsumer")
    }

    /// Whether bound volumes can be reached from a node; else why not.
    pub fn reachable(&self, volumes: &[String], node: &Node) -> Option<Reason> {
        for name in volumes {
            let Some(volume) = self.volumes.get(name) else {
                return Some(Reason::VOLUME_MISSING);
            };
            if volume.spec.node_affinity().is_some_and(|a| !a.matches(&node.name, &node.labels)) {
                return Some(Reason::VOLUME_NODE_CONFLICT);
            }
            if zone_conflict(volume, node) {
                return Some(Reason::VOLUME_ZONE);
            }
        }
        None
    }
}

fn is_bound(claim: &Claim) -> bool {
    !claim.spec.volume_name.is_empty() && claim.metadata.annotations.contains_key(BOUND_ANNOTATION)
}

/// The zone labels of a volume against the node's (upstream `plugins/volumezone`); several zones are joined by `__`.
fn zone_conflict(volume: &Volume, node: &Node) -> bool {
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
