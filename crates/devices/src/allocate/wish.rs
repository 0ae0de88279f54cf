//! The input of the allocator.
use std::collections::HashMap;
use std::sync::Arc;

use super::fault::ClaimError;
use crate::claim::{ClaimSpec, DeviceRequestSpec};
use crate::class::DeviceClassView;
use crate::inventory::Inventory;
use crate::selector::Selectors;
use crate::taken::DevicesInUse;

/// The device classes by name.
pub type Classes = HashMap<Box<str>, Arc<DeviceClassView>>;

/// A claim that needs devices.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest<'a> {
    /// The claim as `NAMESPACE/NAME`, for messages.
    pub claim: &'a str,
    /// The claim's `spec.devices`.
    pub spec: &'a ClaimSpec,
}

/// The error of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationError {
    /// The node's slices contradict each other. Another node may work.
    Node(String),
    /// A claim or a class is invalid. No node can work.
    Claim(ClaimError),
    /// The search exceeded its limit of checks.
    Late,
}

/// The allocator of devices for the claims of a pod. It refers to all slices, the devices of other claims, the device
/// classes and the cache of compiled expressions. Nothing is written: the caller stores the results in the claims.
#[derive(Clone, Copy, Debug)]
pub struct Allocator<'a> {
    /// All resource slices.
    pub inventory: &'a Inventory,
    /// The devices of other claims.
    pub taken: &'a DevicesInUse,
    /// All device classes.
    pub classes: &'a Classes,
    /// The cache of compiled expressions.
    pub selectors: &'a Selectors,
}

/// The position of a device in the pools of this search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct DevicePosition {
    pub pool: usize,
    pub slice: usize,
    pub device: usize,
}

/// One way to satisfy a request.
#[derive(Debug)]
pub(super) struct Choice<'a> {
    pub asked: &'a DeviceRequestSpec,
    /// The name of the alternative, if it is one.
    pub alternative: Option<&'a str>,
    pub class: &'a DeviceClassView,
    pub count: usize,
    /// The matching devices, if the request wants all of them.
    pub all: Option<Vec<DevicePosition>>,
}

/// The ways to satisfy a request, in order of preference.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub name: &'a str,
    /// Whether the request lists alternatives instead of one exact request.
    pub is_list: bool,
    pub options: Vec<Choice<'a>>,
}

impl Choice<'_> {
    /// Returns whether the request has admin access, so that other claims may use the same devices.
    pub fn is_admin(&self) -> bool {
        self.asked.admin_access == Some(true)
    }
}
