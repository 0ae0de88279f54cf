//! Kelson's kubelet: the node agent. It registers its Node and reports the node's status, runs the pods that are bound to the node through
//! a CRI runtime, and serves logs, exec, attach, port-forward and metrics. It reaches the cluster only through the Kubernetes API.
//!
//! [`Kubelet::start`] takes a typed [`Config`] and its effects as traits ([`Dependencies`]), and returns a [`Running`] that ends all tasks.
//! [`pods`] is the core: sources (the API, manifests, URLs) put the newest state of each pod into an inbox; the manager admits a pod and
//! starts one worker for it; the worker compares specification, status of the runtime and probes, computes a plan, executes it through CRI,
//! and writes the status. Every other module supports this: `config` and `pod` read input, `volumes`, `images`, `env`, `cgroups`,
//! `placement`, `devices` and `dra` prepare what a container needs, `status` computes and writes the result, `eviction` and `shutdown` end
//! pods, `server` answers requests. The network of pods belongs to the runtime and its CNI plugins.
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
