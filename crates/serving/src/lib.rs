//! The port that a component serves beside its work: `/healthz`, `/livez` and `/readyz` for everybody, `/metrics` for those
//! whom the API server lets read it. Ports, paths and the way of asking are upstream's (`k8s.io/apiserver` with delegated
//! authentication and authorization, as in kube-scheduler and kube-controller-manager).
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod delegated;
mod server;

pub use delegated::{Attributes, Caller, Delegated};
pub use server::{Component, OpenPaths, Port, start};
