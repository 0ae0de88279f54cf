//! The kubelet's use of the container runtime: configurations of sandboxes and containers, snapshots of their state, and detection of
//! changes.
pub mod config;
pub mod dns;
pub mod events;
pub mod hosts;
pub mod labels;
pub mod sandbox;
pub mod security;
pub mod snapshot;
pub mod tasks;
pub mod userns;
