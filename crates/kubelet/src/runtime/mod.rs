//! The kubelet's side of the runtime: what it asks for (sandbox and container configuration), what it reads back
//! (snapshots), and how it learns of changes.
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
