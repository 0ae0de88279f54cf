//! The health and metrics port of a component: `/healthz`, `/livez` and `/readyz` are public, and `/metrics` requires
//! authorization by the API server. Ports, paths and authorization are upstream's (`k8s.io/apiserver` with delegated
//! authentication and authorization, as in kube-scheduler and kube-controller-manager).
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `delegated` | asks the API server who a caller is and what the caller may do |
//! | `server` | the port |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod delegated;
mod server;

pub use delegated::{Attributes, Caller, Delegated};
pub use server::{Component, OpenPaths, Port, start};
