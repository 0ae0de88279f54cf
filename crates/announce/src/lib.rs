//! Addresses that one of several machines announces to its network, by ARP for IPv4 and by NDP for IPv6: those of services
//! of type LoadBalancer, and that of the API server. Which machine announces an address is decided elsewhere, by a lease or
//! by a controller.
//!
//! Everything is for the network namespace of the thread that starts it.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `ethernet` | hardware addresses, the header of a frame |
//! | `arp`, `ndp` | frames, pure |
//! | `answer`, `error` | what a frame means for our addresses, pure |
//! | `links` | interfaces and addresses through rtnetlink |
//! | `wire` | the sockets of one interface |
//! | `speaker/` | announces, answers and probes on one interface |
//! | `announcer`, `shared` | addresses that no interface has; addresses that an interface has for a limited time |
//! | `services` | the addresses of services |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod announcer;
mod answer;
mod arp;
mod error;
mod ethernet;
mod links;
mod ndp;
mod services;
mod shared;
mod speaker;
#[cfg(test)]
mod tests;
mod wire;

pub use announcer::Announcer;
pub use error::AnnounceError;
pub use ethernet::Mac;
pub use links::{Link, Links};
pub use services::{ANNOUNCED_BY, ServiceAnnouncer};
pub use shared::{SharedAddresses, SharedConfig, Tenure, remove_leftovers};
pub use speaker::{Rival, RivalKind};
