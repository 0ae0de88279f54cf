//! Test doubles: replacements for the wall clock, a trace collector, a webhook server, TLS peers, an API server with
//! watches, and the machines of a cluster.
//!
//! Only tests and benchmarks depend on this crate, so none of it is part of the released binary.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod chains;
mod clock;
pub mod collector;
pub mod lab;
mod watch_api;
pub mod webhook;

pub use clock::TokioClock;
pub use watch_api::WatchApi;
