//! The pod network of one node: address allocation, the bridge, port mappings and masquerading, and the CNI
//! executable through which a container runtime asks for them. Services belong to the proxy.
//!
//! Everything made on the host carries the data directory's id, so that several servers coexist: bridge `kn<id>`,
//! host ends `kv<id4><hash>`, nftables table `kelson-<id>`, CNI network `kelson-<id>`.
//!
//! Pods get a /32 and reach each other through the gateway: all their traffic is routed, none is bridged. A reply of
//! a service's endpoint therefore always passes the host's connection tracking, with or without `br_netfilter`.

pub mod cni;
mod config;
mod error;
mod ipam;
mod netlink;
mod network;
mod nft;

pub use config::{NetworkConfig, network_id};
pub use error::NetError;
pub use ipam::{Allocation, PortMapping, Protocol};
pub use network::{Network, cleanup};
