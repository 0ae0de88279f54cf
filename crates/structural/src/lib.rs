//! Kelson structural: the schemas of custom resource definitions, and the processing of custom resources by them, as
//! far as no server is needed. Nothing here waits, opens sockets or knows stores and catalogs.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `schema/` | types of all positions of a document, shared where they are equal, and patterns |
//! | `object/`, `publish/` | prune, default, validate by keyword and format, compare with the old object; shapes and OpenAPI |
//! | `rules/` | CEL rules: types, programs, verdicts; compiled when the first object needs them |
//! | `definition/`, `validator` | what a CustomResourceDefinition may contain; all validation of an object, in order |
//!
//! All inputs are trees. Nothing is looked up.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod definition;
pub mod object;
pub mod publish;
pub mod rules;
pub mod schema;
mod validator;

pub use schema::{SchemaError, Structural};
pub use validator::Validator;

#[cfg(test)]
mod tests;
