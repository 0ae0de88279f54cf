//! The environment for tests of components: the real API server in memory ([`Api`]), a container runtime in memory
//! ([`FakeRuntime`]), requests that fail as with a real network and a busy server ([`Faults`]), and one thread on which
//! a seed determines everything ([`run_seeded`]). Only tests depend on this crate.
//!
//! Component tests take [`Api`] and a paused clock. The simulation of the whole cluster is `tests/whole`.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `trace`, `entropy` | one seed |
//! | `disk`, `clock`, `faults/` | what fails |
//! | `api`, `runtime/`, `leaders` | the API server and the container runtime in memory |
//! | `pods`, `steps` | pods for tests, and steps that fail one after the other |
//!
//! Tests of the whole cluster are in `tests/whole`.
// Helpers of a test fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::missing_panics_doc)]

mod api;
mod clock;
mod disk;
mod entropy;
mod faults;
#[cfg(test)]
mod leaders;
mod pods;
mod runtime;
mod steps;
mod trace;

pub use api::{Api, features};
pub use clock::WallClock;
pub use entropy::run_seeded;
pub use faults::{Failure, Faults, Rates};
pub use pods::Fate;
pub use runtime::FakeRuntime;
pub use steps::{DISTURBANCES, at_every_request, at_every_request_with};
pub use trace::Trace;
