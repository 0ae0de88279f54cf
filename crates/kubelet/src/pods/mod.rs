//! Pods on this node: one worker task per pod. [`manager`] starts workers, [`worker`] keeps a pod's state and turns
//! events into decisions ([`plan`], pure), [`execute`] and [`terminate`] carry them out. Pods of this node's own
//! manifests come from [`manifests`].
pub mod admit;
pub mod backoff;
pub mod execute;
pub mod manager;
pub mod manifests;
mod mirror;
pub mod plan;
pub mod terminate;
pub mod worker;
