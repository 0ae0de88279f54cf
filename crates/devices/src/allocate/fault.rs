//! Errors of claims, with upstream's messages.
use std::fmt;

use crate::device_id::DeviceId;
use crate::names::RESULTS_MAX;
use crate::selector::SelectorError;

/// The maximum number of devices for all claims of a pod, which limits the depth of the search.
pub(super) const DEVICES_MAX: usize = 256;

/// A request of a claim, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestName {
    /// The claim as `NAMESPACE/NAME`.
    pub claim: String,
    /// The name of the request, or of the alternative in a list.
    pub request: String,
}

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "claim {}, request {}", self.claim, self.request)
    }
}

/// Why no node can satisfy a claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// A request names no class.
    #[error("{0}: missing device class name (unsupported request type?)")]
    NoClass(RequestName),
    /// No such class exists.
    #[error("{at}: could not retrieve device class {class}: deviceclass.resource.k8s.io \"{class}\" not found")]
    UnknownClass {
        /// The request with the error.
        at: RequestName,
        /// The class that it names.
        class: String,
    },
    /// A selector of a request has no expression.
    #[error("{at}, selector #{index}: CEL expression empty (unsupported selector type?)")]
    EmptySelector {
        /// The request with the error.
        at: RequestName,
        /// The index of the selector.
        index: usize,
    },
    /// A selector of a claim or a class is invalid, or does not apply to a device.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// The number of devices does not fit this machine, or is negative.
    #[error("{at}: exact count {count} is too large")]
    CountTooLarge {
        /// The request with the error.
        at: RequestName,
        /// The number of devices that it asks for.
        count: i64,
    },
    /// A request has an unknown allocation mode.
    #[error("{at}: unsupported count mode {mode}")]
    UnknownMode {
        /// The request with the error.
        at: RequestName,
        /// The `allocationMode` of the request.
        mode: String,
    },
    /// A request for all devices cannot be counted while a pool is not complete.
    #[error("{at}: asks for all devices, but resource pool {pool} is currently {state}")]
    PoolNotReady {
        /// The request with the error.
        at: RequestName,
        /// The pool as `DRIVER/NAME`.
        pool: String,
        /// The state of the pool.
        state: &'static str,
    },
    /// The requests of a claim need more devices than an allocation can have.
    #[error("claim {claim}: number of requested devices {count} exceeds the claim limit of {}", RESULTS_MAX)]
    TooManyDevices {
        /// The claim as `NAMESPACE/NAME`.
        claim: String,
        /// The least number of devices that satisfies it.
        count: usize,
    },
    /// The claims of a pod need more devices than a search takes.
    #[error("claim {claim}: the claims of a pod have at most {} devices", DEVICES_MAX)]
    PodTooLarge {
        /// The claim that exceeds the limit.
        claim: String,
    },
    /// A constraint has no attribute.
    #[error("claim {claim}, constraint #{index}: empty constraint (unsupported constraint type?)")]
    EmptyConstraint {
        /// The claim as `NAMESPACE/NAME`.
        claim: String,
        /// The index of the constraint.
        index: usize,
    },
    /// A request for all devices contradicts a constraint.
    #[error("{at}: cannot add device {device} because a claim constraint would not be satisfied")]
    Constrained {
        /// The request with the error.
        at: RequestName,
        /// The device that violates the constraint.
        device: DeviceId,
    },
}
