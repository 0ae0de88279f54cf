//! What stands in the node's place on systems other than Linux: a node needs namespaces, cgroups and nftables. Its commands are
//! there, out of sight, to say so; flags that are about the node alone are not. The face is that of the module `node`.
#![cfg_attr(target_os = "linux", allow(dead_code, reason = "compiled for its tests"))]
pub mod args;
pub mod components;
pub mod run;
