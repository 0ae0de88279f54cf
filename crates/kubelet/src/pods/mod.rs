//! Pods on this node, with one worker task per pod. [`manager`] starts workers. [`worker`] keeps the state of one pod and turns events into
//! plans ([`plan`], pure), which [`execute`] and [`terminate`] carry out. Static pods come from [`manifests`] and from a URL (`published`).
//! [`admit`] and [`resize`] decide which resources a pod may use, [`preempt`] which pods end for a critical pod, and [`room`] lets pods
//! wait for resources of ending pods.
pub mod admit;
pub mod backoff;
pub mod event;
mod execute;
pub mod health;
pub(crate) mod in_flight;
pub mod inbox;
pub mod known;
mod location;
mod logging;
pub mod manager;
pub mod manifests;
mod mirror;
pub mod parts;
pub mod pinning;
mod place;
pub mod plan;
pub mod preempt;
mod published;
pub mod resize;
mod resizing;
pub mod room;
pub mod shares;
mod terminate;
pub mod worker;
