//! This machine as a node of a cluster, on Linux: the commands and flags for it, and what a server starts beside its control plane.
//! Elsewhere the module `absent` stands in its place, with the same face: `args`, `components` and `run`.
mod agent;
pub mod args;
mod check;
mod cleanup;
pub mod components;
mod credentials;
mod discovery;
mod dns;
mod fields;
mod gate;
mod image;
mod kube_proxy;
mod kubelet;
mod network;
mod pins;
mod placement;
mod pod_logs;
mod pod_network;
pub mod run;
mod status;
mod support;
mod trust;
mod upgrade;
