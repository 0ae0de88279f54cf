//! Environment variables of a container, and expansion of references to them.
pub mod expand;
pub mod fields;
mod file;
pub mod resolve;
pub mod services;
