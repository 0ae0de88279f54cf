//! The container runtime interface: CRI v1 messages, the [`Runtime`] trait and its client over a unix socket, and the
//! containerd that Kelson supervises when it is given no other runtime. What pods are is the kubelet's knowledge.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `error`, `proto/`, `mounts`, `channel` | errors, messages, mounts, the connection |
//! | `transfers`, `runtime`, `client` | limits of transfers, the trait, its client |
//! | `image/` | archives: `open` unpacks, `platform` selects |
//! | `containerd/` | Kelson's containerd: `config`, `handlers` besides runc, `process`, `import`, `preload`, `supervisor`; `shims` ends shims that containerd has lost, `cleanup` removes everything |
//! | `leftovers` | ends processes that a runtime left in a cgroup |
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
