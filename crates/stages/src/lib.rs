//! Stages: the simulated life of objects without a real backend (`kwok.x-k8s.io/v1alpha1` `Stage`). A stage selects
//! objects by labels, annotations and fields, and defines a delay and the writes after it. The crate is pure: callers
//! pass in the time, the random numbers and the cluster that templates read.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `error`, `document` | errors; what a Stage contains, older forms included |
//! | `query`, `expression` | paths of jq; CEL |
//! | `value` | a duration or a weight that an expression gives |
//! | `selector`, `template/` | selectors; Go's templates with their functions, which read a cluster through a trait |
//! | `step` | what a stage writes |
//! | `stage` | a stage, compiled |
//! | `lifecycle`, `file` | the choice among the stages of one kind by weight; files of stages |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod document;
mod error;
mod expression;
mod file;
mod lifecycle;
mod query;
mod selector;
mod stage;
mod step;
mod template;
#[cfg(test)]
mod tests;
mod value;

pub use document::{Document, Reference};
pub use error::StageError;
pub use file::{File, Settings, read};
pub use lifecycle::Lifecycle;
pub use stage::Stage;
pub use step::{Effect, PatchFormat};
pub use template::{Surroundings, Templates};
