//! Kelson kubelet: the node agent. Registers and reports its node, runs the pods bound to it through a CRI runtime, and
//! serves logs, exec, attach and port-forward. It speaks to the cluster through the API alone.
//!
//! [`Kubelet::start`] takes a typed [`Config`] and its effects as traits; what pods are is in [`pods`], everything else
//! serves that. Networking of pods is the runtime's and its plugins' work.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod cgroups;
pub mod cleanup;
pub mod config;
pub mod csi;
pub mod devices;
pub mod dra;
pub mod effects;
pub mod env;
pub mod eviction;
pub mod images;
pub mod logs;
pub mod metrics;
pub mod node;
pub mod objects;
pub mod placement;
pub mod pod;
pub mod pods;
pub mod probes;
pub mod runtime;
pub mod server;
pub mod shutdown;
pub mod spans;
pub mod start;
pub mod status;
pub mod systemd;
mod upkeep;
pub mod volumes;
pub mod wiring;

pub use config::{Config, CredentialProviderFiles, RegisterTaint, ServerConfig};
pub use effects::NetworkGate;
pub use start::{Kubelet, KubeletError, Running};
pub use wiring::Dependencies;
