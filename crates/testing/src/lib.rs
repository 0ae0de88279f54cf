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
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `options`, `identity` | what a cluster is like; its CAs and keys, in memory |
//! | `cluster` | the API server and the parts that the options name |
//! | `server/` | clusters over HTTP, for tests in other languages |
//!
//! Clusters share what is equal: the records of a store and of its forks (`store/src/fork.rs`), compiled schemas of definitions
//! (`Running::fork`), and the objects that every cluster has, which the first cluster of a process creates.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod cluster;
mod identity;
mod options;
pub mod server;

pub use cluster::{Cluster, Error};
pub use options::{Nodes, Options};
