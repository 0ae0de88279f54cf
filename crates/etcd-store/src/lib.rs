//! Kelson etcd store: the API's objects on an etcd cluster, under the keys, in the form and with the conventions of
//! upstream's API server, so that its servers and Kelson's may work on the same data, one after the other or side by
//! side.
//!
//! The store lists everything at one revision and watches from there. It answers reads from that mirror
//! ([`kelson_store::Mirror`]), in etcd's order and with etcd's revisions. Writes are transactions that compare the
//! revision of the key, and return when the mirror contains them. So clients see the state of etcd, including the
//! writes of other servers.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `version`, `key`, `value/` | pure: keys, values, the old form of definitions |
//! | `metrics`, `connection` | the member in use, TLS, which requests may be repeated |
//! | `pending`, `lease`, `marker` | writes that wait for the watch, leases, a write that makes a revision visible |
//! | `fence`, `core`, `health` | the shared state and its health |
//! | `compact`, `ports`, `raw`, `load`, `floors`, `follow`, `reach` | compaction, allocated node ports, the first read (after a move: as it was moved), and the watch |
//! | `start` | the first read, with what happened shortly before |
//! | `write`, `servers` | objects; leases of API servers |
//! | `open` | the interface |
//! | `migrate/` | moves between an embedded store and an etcd member |
//!
//! The path of each resource is in `schema/src/storage.rs`, because encryption authenticates values with it.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod compact;
mod connection;
mod core;
mod fence;
mod floors;
mod follow;
mod health;
mod key;
mod lease;
mod load;
mod marker;
mod metrics;
pub mod migrate;
mod open;
mod pending;
mod ports;
mod raw;
mod reach;
mod servers;
mod start;
mod value;
mod version;
mod write;

pub use kelson_etcd::endpoint::ClientTlsFiles as TlsFiles;
pub use open::{EtcdError, EtcdOptions, EtcdStore};
pub use value::MediaType;
