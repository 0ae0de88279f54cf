//! Kelson dns: cluster DNS from informers (Kubernetes DNS specification 1.1.0), everything else forwarded and cached.
//!
//! [`Directory`] indexes services and endpoint slices, [`Zone`] answers queries from it, [`Server`] serves UDP and TCP
//! for the cluster's [`Sources`], and [`publish`] makes the `kube-dns` service point to this server. Queries never
//! reach the API.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `directory`, `zone`, `sources`, `wire` | the data of names; the allowed sources and their shares; positions in messages |
//! | `cache` | answers of other resolvers; pure |
//! | `metrics` | metrics |
//! | `forward` | other servers |
//! | `server/` | UDP and TCP |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod cache;
mod directory;
mod forward;
mod metrics;
mod publish;
mod server;
mod sources;
mod wire;
mod zone;

pub use directory::{Directory, EndpointSlice, Service, watch};
pub use forward::Forwarder;
pub use publish::{Published, publish};
pub use server::Server;
pub use sources::{Node, Sources};
pub use zone::{Answer, Zone};
