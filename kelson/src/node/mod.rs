//! This machine as a node of a cluster, on Linux: its commands and flags, and the node that a server starts next to its
//! control plane. On other systems the module `absent` replaces it, with the same interface: `args`, `components`,
//! `run` and `vip`.
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
mod own_kubeconfig;
mod pins;
mod placement;
mod pod_logs;
mod pod_network;
pub mod run;
mod scope;
mod servers;
mod status;
mod support;
mod trust;
mod upgrade;
pub mod vip;
mod vote;
