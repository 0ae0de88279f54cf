//! What others read of a schema: its shape for patches and apply, documents, columns, paths.
pub mod openapi;
mod shape;

pub use shape::shape;
