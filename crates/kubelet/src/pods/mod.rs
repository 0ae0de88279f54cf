//! Pods on this node: one worker task per pod. [`manager`] starts workers, [`worker`] keeps a pod's state and turns
//! events into decisions ([`plan`], pure), [`execute`] and [`terminate`] carry them out. Pods of this node's own
//! manifests come from [`manifests`] and from a URL (`published`). Which resources a pod may use here says [`resize`], and which
//! pods make room for others [`preempt`], for which those wait ([`room`]).
pub mod admit;
pub mod backoff;
pub mod event;
mod execute;
pub mod health;
pub(crate) mod in_flight;
pub mod inbox;
pub mod known;
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
