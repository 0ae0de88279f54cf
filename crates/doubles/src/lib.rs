//! Test doubles: what tests put in place of the wall clock, of a trace collector, of a webhook server, and of TLS peers of every kind.
//!
//! Only tests and benchmarks depend on this crate, so none of it is part of the released binary.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod chains;
mod clock;
pub mod collector;
pub mod webhook;

pub use clock::TokioClock;
