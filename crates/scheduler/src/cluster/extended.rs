//! Extended resources of a pod that DeviceClasses map to (KEP-5004). Whether a device plugin or a driver provides them
//! is decided for each node: a node where a device plugin has any does not use drivers.
use std::collections::BTreeMap;

use kelson_devices::{ExtendedAsk, ExtendedClaim};

use crate::reason::Reason;
use crate::view::{Node, PodSpec};

/// Name of a claim that does not exist yet, as messages show it.
const UNMADE: &str = "<extended-resources>";

/// The extended resources of a pod of which at least one is mapped by a class.
#[derive(Debug)]
pub struct ExtendedNeeds {
    /// The name of the claim in messages.
    pub claim: String,
    asks: Vec<ExtendedAsk>,
    /// Resource and amount that the pod needs at once.
    asked: Vec<(Box<str>, i64)>,
    /// The class that maps to each resource, by resource.
    classes: BTreeMap<Box<str>, String>,
}

impl ExtendedNeeds {
    /// Collects the extended resources of a pod; `None` when no class maps to any of them.
    pub fn new<'d>(spec: &PodSpec, class_of: impl Fn(&str) -> Option<&'d str>) -> Option<Self> {
        let mut asked: Vec<(Box<str>, i64)> = Vec::new();
        for ask in &spec.extended {
            let all = spec.requests.asked.scalar(&ask.resource);
            if all > 0 && !asked.iter().any(|(name, _)| *name == ask.resource) {
                asked.push((ask.resource.clone(), all));
            }
        }
        let class = |(name, _): &(Box<str>, i64)| Some((name.clone(), class_of(name)?.to_owned()));
        let classes: BTreeMap<Box<str>, String> = asked.iter().filter_map(class).collect();
        let claim = format!("{}/{UNMADE}", spec.namespace);
        (!classes.is_empty()).then(|| Self { claim, asks: spec.extended.clone(), asked, classes })
    }

    /// Reports whether drivers provide a resource on a node.
    pub fn is_of_drivers(&self, resource: &str, node: &Node) -> bool {
        self.classes.contains_key(resource) && node.allocatable.scalar(resource) == 0
    }

    /// Returns the claim for what drivers must provide on a node.
    ///
    /// # Errors
    /// The reason for the node's rejection when it has none of a resource.
    pub fn on(&self, node: &Node) -> Result<ExtendedClaim, Reason> {
        let known = |name: &str| node.allocatable.scalars.iter().any(|(n, _)| **n == *name);
        let mut classes = self.classes.clone();
        for (name, _) in &self.asked {
            if self.is_of_drivers(name, node) {
                continue;
            }
            classes.remove(name);
            if !known(name) {
                return Err(Reason("cannot fit resource".into()));
            }
        }
        Ok(ExtendedClaim::new(&self.asks, &classes))
    }
}
