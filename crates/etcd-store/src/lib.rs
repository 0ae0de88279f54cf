//! Kelson etcd store: the API's objects on an etcd cluster, under the keys, in the form and with the conventions of the
//! reference, so that its API servers and ours may work on the same data, one after the other or side by side.
//!
//! Everything is read at one revision and watched from there on; reads are answered from that mirror
//! ([`kelson_store::Mirror`]), in etcd's order and under etcd's revisions. Writes are transactions that compare the
//! revision of the key, and are answered when the mirror shows them. So what is seen is what etcd has, whoever wrote it.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod compact;
mod connection;
mod core;
mod endpoint;
mod fence;
mod follow;
mod health;
mod key;
mod lease;
mod load;
mod marker;
mod metrics;
mod open;
mod pending;
mod ports;
mod raw;
mod reach;
mod servers;
mod value;
mod version;
mod write;

pub use endpoint::TlsFiles;
pub use open::{EtcdError, EtcdOptions, EtcdStore};
pub use value::MediaType;
