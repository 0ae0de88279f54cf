//! What is asked, and all that is looked at to answer it.
use std::collections::HashMap;
use std::sync::Arc;

use crate::claim::{Asked, ClaimSpec};
use crate::class::DeviceClassView;
use crate::inventory::Inventory;
use crate::selector::Selectors;
use crate::taken::Taken;

/// Device classes by name.
pub type Classes = HashMap<Box<str>, Arc<DeviceClassView>>;

/// A claim that wants devices.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// `NAMESPACE/NAME`, for messages.
    pub claim: &'a str,
    /// `spec.devices` and nothing else.
    pub spec: &'a ClaimSpec,
}

/// Why it cannot be said what a node has to give. Display is upstream's sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The node's slices contradict each other; another node may do.
    Node(String),
    /// Something is wrong with a claim or a class; no node will do.
    Claim(String),
    /// There are too many ways to try.
    Late,
}

/// All that allocating looks at.
#[derive(Clone, Copy, Debug)]
pub struct Allocator<'a> {
    /// All slices there are.
    pub inventory: &'a Inventory,
    /// What other claims have.
    pub taken: &'a Taken,
    /// All classes there are.
    pub classes: &'a Classes,
    /// Expressions that were compiled before.
    pub selectors: &'a Selectors,
}

/// Where a device stands in the pools of this search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub pool: usize,
    pub slice: usize,
    pub device: usize,
}

/// One way to fulfil a request.
#[derive(Debug)]
pub(super) struct Choice<'a> {
    pub asked: &'a Asked,
    /// The name of the alternative, where it is one.
    pub alternative: Option<&'a str>,
    pub class: &'a DeviceClassView,
    pub count: usize,
    /// The devices, where all are wanted.
    pub all: Option<Vec<Place>>,
}

/// The ways to fulfil a request, the best first.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub name: &'a str,
    /// There are alternatives, rather than the one exact request.
    pub is_list: bool,
    pub options: Vec<Choice<'a>>,
}

impl Choice<'_> {
    /// Whether it looks after devices that others use.
    pub fn is_admin(&self) -> bool {
        self.asked.admin_access == Some(true)
    }
}
