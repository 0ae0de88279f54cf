//! The container runtime interface: CRI v1 messages, the [`Runtime`] trait and its client over a unix socket, and the
//! containerd that Kelson supervises when no other runtime is configured. The kubelet maps pods to these calls.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod channel;
pub mod client;
pub mod containerd;
pub mod error;
pub mod image;
pub mod leftovers;
pub mod mounts;
pub mod proto;
pub mod runtime;
mod transfers;

pub use client::{CriClient, Limits};
pub use error::{CriError, CriResult};
pub use runtime::{EventStream, ExecOutput, Runtime};
pub use tonic::Code;
