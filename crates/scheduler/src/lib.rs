//! Kelson scheduler: kube-scheduler's plugins, in the default profile or in the profiles of a
//! [`configuration`](crate::configuration).
//!
//! The path of a pod: an informer decodes it into a small [`view`](crate::view) whose template part is shared with pods
//! of the same template; [`queue`](crate::queue) orders the pods that wait; [`select`](crate::evaluation::select) runs
//! the plugins through an evaluation that caches their results; the chosen node is assumed in
//! [`cluster`](crate::cluster) and the binding is written by [`run`](crate::run), many concurrently. A pod that fits
//! nowhere gets a condition and an event with the reason, and waits for a change that may let it fit.
//!
//! Invariants: decisions are made by one task under one short lock and touch no API; nothing is computed twice for
//! equal specs on an unchanged node; at rest no timer runs.
//!
//! Not supported yet: extended resources that are backed by device classes.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `view/` | the fields that are read of each kind |
//! | `reason` | why a node was rejected |
//! | `cluster/` | the assumed state of nodes, pods, volumes, devices and workloads |
//! | `plugins/` | one file and one row of `table.rs` for each plugin; pure. `change` names the changes that may make rejected pods fit |
//! | `queue`, `extender` | the queue; the extenders |
//! | `evaluation/` | `memo` keeps verdicts for each spec and node generation, `select` chooses, `preempt` makes room |
//! | `profile`, `metrics` | name, plugins and weights of a scheduler; metrics |
//! | `core/` | the whole scheduler without a clock and without the API |
//! | `run/` | informers (`follow`), bindings and conditions (`write`), calls to extenders (`extend`), tasks |
//! | `configuration/` | the configuration file |
//!
//! A plugin may read the spec, a node with its pods, and the data that it prepared. It does not wait and does not see the API.
//! Extenders are called outside the lock, for one pod at a time, and the nodes that they leave are filtered once more
//! (`core/ask`).
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
