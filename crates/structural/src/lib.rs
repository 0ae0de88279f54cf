//! Kelson structural: custom resources as far as no server is needed for them: schemas of custom resource definitions, and
//! what objects become by them. Nothing here waits, opens sockets or knows of stores and catalogs.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod object;
pub mod publish;
pub mod schema;

pub use schema::{SchemaError, Structural};

#[cfg(test)]
mod tests;
