//! The pod network of one node: address allocation, the bridge, port mappings and masquerading, and the CNI executable
//! that a container runtime calls. Services are handled by the proxy.
//!
//! Names of everything on the host contain the data directory's ID, so that several servers coexist: bridge `kn<id>`,
//! host ends `kv<id4><hash>`, VXLAN device `kv<id>`, nftables table `kelson-<id>`, CNI network `kelson-<id>`.
//! [`ranges`] reserves address ranges.
//!
//! Pods get a /32 and reach each other through the gateway: all their traffic is routed, none is bridged. A reply of
//! a service's endpoint therefore always passes the host's connection tracking, with or without `br_netfilter`.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `aside`, `family`, `ports`, `error`, `config`, `ipam`, `nft` | the lane for blocking work, address families, addresses of pods; `nft` is the one place that runs nft (the proxy uses it) |
//! | `conntrack`, `netns`, `sysctl` | tracked connections; work in a network namespace; kernel parameters |
//! | `netlink`, `events`, `iptables` | `events` reports changes of other programs |
//! | `nf_tables`, `set_type` | numbers of the kernel; keys and data of sets in its form |
//! | `batch` | small transactions without nft |
//! | `listing` | the number of items in a table, and counters |
//! | `table`, `rules`, `spoofing` | the items of a table and the transaction between two states, for every crate that keeps a table; the text of rules |
//! | `guard` | detects that another program changed a table |
//! | `overlay`, `network/`, `ranges/` | the tunnel, the bridge, the ranges of the host; `network/guard` checks the whole host |
//! | `peers`, `cni` | other nodes; the CNI executable |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod aside;
mod batch;
pub mod cni;
mod config;
pub mod conntrack;
mod error;
pub mod events;
mod family;
pub mod guard;
mod ipam;
mod iptables;
pub mod listing;
mod netlink;
mod netns;
mod network;
mod nf_tables;
pub mod nft;
mod overlay;
mod peers;
mod ports;
pub mod ranges;
mod rules;
mod set_type;
mod spoofing;
pub mod sysctl;
pub mod table;

pub use config::{NetworkConfig, OverlayConfig, VXLAN_PORT, network_id};
pub use error::NetError;
pub use family::Family;
pub use ipam::Allocation;
pub use network::{Damage, HostGuard, Network, cleanup, host_addresses};
pub use overlay::Peer;
pub use peers::PeerWatch;
pub use ports::{PortMapping, Protocol};
