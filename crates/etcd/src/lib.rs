//! An etcd in this process: version 3 of its protocol over keys with all their versions in memory, made durable by a log.
//! One member, whose log nobody else follows: what etcd asks a quorum for is a sync here.
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
