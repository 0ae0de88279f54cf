//! Kelson scheduler: kube-scheduler's plugins, in the default profile or in the profiles of a
//! [`configuration`](crate::configuration).
//!
//! The path of a pod: an informer decodes it into a small [`view`](crate::view) whose template part is shared with pods
//! of the same template; [`queue`](crate::queue) orders the pods that wait; [`select`](crate::evaluation::select) runs
//! the plugins through an evaluation that caches their results; the chosen node is assumed in
//! [`cluster`](crate::cluster) and the binding is written by [`run`](crate::run), many concurrently. A pod that fits
//! nowhere gets a condition and an event with the reason, and waits for a change that may let it fit.
//!
//! Invariants: decisions are made by one task under one short lock and do no I/O; nothing is computed twice for equal
//! specs on an unchanged node; no timer runs while the scheduler is idle.
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
