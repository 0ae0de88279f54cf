//! Pods on this node: one worker task per pod. [`manager`] starts workers, [`worker`] keeps a pod's state and turns
//! events into decisions ([`actions`], pure), [`execute`] and [`terminate`] carry them out.
pub mod actions;
pub mod admit;
pub mod backoff;
pub mod execute;
pub mod manager;
pub mod spec;
pub mod terminate;
pub mod worker;
