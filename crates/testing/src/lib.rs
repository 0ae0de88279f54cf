//! A Kubernetes cluster per test, in this process: the real API server in memory or in a directory, with the controllers, the
//! scheduler and the hollow nodes that a test names, and nothing else.
//!
//! ```no_run
//! # async fn example() -> Result<(), kelson_testing::Error> {
//! use kelson_testing::{Cluster, Options};
//! let prepared = Cluster::start(Options::default()).await?;
//! // Create what all tests need, then give each test a fork.
//! let mine = prepared.fork().await?;
//! std::fs::write("kubeconfig", mine.kubeconfig()?).expect("writes");
//! # Ok(()) }
//! ```
//!
//! Clusters are independent: each has a separate store, revisions, CAs and port, on 127.0.0.1. A fork shares with its
//! original what neither has changed. A cluster ends when it is dropped, or by [`Cluster::shutdown`], which waits for it.
//!
//! Rooms: `options` (of a cluster) and `identity` (its CAs and keys) ← `cluster` (starts all parts) ←
//! `server` (clusters over HTTP, for tests in other languages).
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod cluster;
mod identity;
mod options;
pub mod server;

pub use cluster::{Cluster, Error};
pub use options::{Nodes, Options};
