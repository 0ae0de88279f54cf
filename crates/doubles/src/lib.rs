//! Test doubles: what tests put in place of the wall clock, of a trace collector, of a webhook server, of TLS peers of every kind, of
//! an API server that is only watched, and of the machines of a cluster.
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
