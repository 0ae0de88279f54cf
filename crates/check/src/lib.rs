//! Whether a machine can be a Kubernetes server or node: what `kelson check` finds, what each finding means, and what to do.
//!
//! Each probe reads facts from a [`Host`] (files of `/proc`, `/sys`, `/etc`; a few programs), and decides about them in a pure function.
//! Reading blocks: the checks run before anything else, or in a command that does nothing else.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `finding`, `host` | findings; access to the machine |
//! | `probes/` | one file for each probe: facts, `read`, and `find`, which is pure |
//! | `report` | the output |
//!
//! A probe changes nothing.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(test)]
mod fake;
mod finding;
mod host;
mod probes;
mod report;

pub use finding::{Finding, Level};
pub use host::{Host, Measured, Purpose};
pub use probes::{Running, all, listens, processes};
pub use report::Report;

/// Firewalls that drop what a node needs. It runs programs, and takes longer the more rules there are.
pub fn firewalls(host: &Host, purpose: &Purpose) -> Vec<Finding> {
    probes::firewalls(host, purpose).into_iter().filter(|finding| finding.level >= Level::Warning).collect()
}

/// Runs the checks that take a few milliseconds, for the start of a server.
pub fn at_start(host: &Host, purpose: &Purpose) -> Report {
    Report { findings: probes::quick(host, purpose) }
}
