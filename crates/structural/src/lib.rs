//! Kelson structural: custom resources as far as no server is needed for them: schemas of custom resource definitions, and
//! what objects become by them. Nothing here waits, opens sockets or knows of stores and catalogs.
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
