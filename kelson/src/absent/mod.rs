//! Replaces the module `node` on systems other than Linux: a node needs namespaces, cgroups and nftables. Its commands
//! exist as hidden commands that report that; flags about the node alone do not exist. The interface is that of the
//! module `node`.
#![cfg_attr(target_os = "linux", allow(dead_code, reason = "compiled for its tests"))]
pub mod args;
pub mod components;
pub mod run;
pub mod vip;
