//! Stages: how objects that nothing stands behind seem to live (`kwok.x-k8s.io/v1alpha1` `Stage`). Which stage an object is in by its
//! labels, annotations and fields, how long it stays there, and what is written when it goes on. Pure: the time, chance and
//! whatever templates ask of the cluster are handed in.
//!
//! Rooms: `error` → `document` (what a Stage says) → `query` (jq's paths), `expression` (CEL) → `value` (a duration or a weight that an expression
//! gives) → `selector` beside `template/` (Go's templates) → `step` (what is written) → `stage` (all of it compiled) → `lifecycle` (the stages of
//! one kind), `file`.
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
