//! Kelson scheduler: kube-scheduler's plugins, in the default profile or those that a
//! [`configuration`](crate::configuration) makes.
//!
//! A pod's way: an informer decodes it into a small [`view`](crate::view) whose template part is shared with its siblings;
//! [`queue`](crate::queue) keeps it until it is its turn; [`select`](crate::evaluation::select) asks the plugins, through an
//! evaluation that remembers every verdict which is still true; the chosen node is assumed in
//! [`cluster`](crate::cluster) and the binding written by [`run`](crate::run), many at once. A pod that fits nowhere is
//! told why and waits for a change that may let it fit.
//!
//! Invariants: decisions are made by one task under one short lock and touch no API; nothing is computed twice for
//! equal specs on an unchanged node; at rest no timer runs.
//!
//! Not here yet: extended resources that device classes stand for.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod cluster;
pub mod configuration;
#[doc(hidden)]
pub mod core;
mod evaluation;
mod extender;
mod metrics;
mod plugins;
mod profile;
mod queue;
mod reason;
mod run;
#[doc(hidden)]
pub mod view;

pub use profile::Profile;
pub use run::{Config, Extenders, FEATURE_GATES, Running, Scheduler};

#[cfg(test)]
mod tests;
