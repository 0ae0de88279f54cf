//! An etcd server in this process: version 3 of the protocol, with all versions of keys in memory and a log on disk. It
//! has one member without replication: where etcd waits for a quorum, this server waits for a sync.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod client;
pub mod disk;
mod error;
mod export;
pub mod mvcc;
pub mod proto;
pub mod server;
pub mod store;
pub mod watch;

pub use error::Error;
