//! The environment for tests of components: the real API server in memory ([`Api`]), a container runtime in memory
//! ([`FakeRuntime`]), requests that fail as with a real network and a busy server ([`Faults`]), and one thread on which
//! a seed determines everything ([`run_seeded`]). Only tests depend on this crate.
//!
//! Component tests use [`Api`] and a paused clock. The simulation of the whole cluster is `tests/whole`.
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
