//! An etcd in this process: version 3 of its protocol over keys with all their versions in memory, made durable by a log.
//! One member, whose log no other member follows: what etcd asks a quorum for is a sync here.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `proto/`, `error` | messages and errors |
//! | `client`, `endpoint`, `mvcc/` | calls of a client, and its connections to members; keys, versions and leases, pure and without a clock |
//! | `disk/` | a log and snapshots, each frame with a checksum |
//! | `store/` | the one committer, and the watchers of each key |
//! | `watch/`, `export/` | a cursor for each stream; the file format of etcd |
//! | `server/` | calls, written once for gRPC and for JSON (`exchange`, `json/`) |
//!
//! A write is applied, made durable and then shown. Readers see the revision that is shown, and a write that could not be
//! stored is undone. A commit wakes only the streams that watch its keys.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod client;
pub mod disk;
pub mod endpoint;
mod error;
pub mod export;
pub mod mvcc;
pub mod proto;
pub mod server;
pub mod store;
pub mod watch;

pub use error::Error;
