//! Extended resources of a pod that classes of devices stand for (KEP-5004). Which node has them of a plugin and which of
//! drivers is decided node by node: where a plugin has any, drivers are not asked.
use std::collections::BTreeMap;

use kelson_devices::{ExtendedAsk, ExtendedClaim};

use crate::reason::Reason;
use crate::view::{Node, PodSpec};

/// The claim's name while it is only thought of, as messages have it.
const UNMADE: &str = "<extended-resources>";

/// What a pod asks of extended resources, where a class stands for one of them.
#[derive(Debug)]
pub struct ExtendedNeeds {
    /// As messages name the claim.
    pub claim: String,
    asks: Vec<ExtendedAsk>,
    /// How many of each the pod needs at once.
    asked: Vec<(Box<str>, i64)>,
    /// The classes that stand for them.
    classes: BTreeMap<Box<str>, String>,
}

impl ExtendedNeeds {
    /// What a pod asks for, and which class stands for what; `None`: none does.
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

    /// Whether drivers are asked for a resource on a node.
    pub fn is_of_drivers(&self, resource: &str, node: &Node) -> bool {
        self.classes.contains_key(resource) && node.allocatable.scalar(resource) == 0
    }

    /// What drivers are to give on a node.
    ///
    /// # Errors
    /// Nobody there has a resource.
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
