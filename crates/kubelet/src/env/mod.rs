//! The environment of a container, and what is expanded from it.
pub mod expand;
pub mod fields;
mod file;
pub mod resolve;
pub mod services;
