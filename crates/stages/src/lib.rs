//! Stages: how objects that nothing stands behind seem to live (`kwok.x-k8s.io/v1alpha1` `Stage`). Which stage an object is in by its
//! labels, annotations and fields, how long it stays there, and what is written when it goes on. Pure: the time, chance and
//! whatever templates ask of the cluster are handed in.
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
pub use step::{Effect, Form};
pub use template::{Surroundings, Templates};
