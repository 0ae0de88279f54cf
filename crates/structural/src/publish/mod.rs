//! The forms of a schema for other code: its shape for patches and apply, documents, columns, paths.
mod column;
mod json_path;
pub mod openapi;
mod shape;

pub use column::Column;
pub use json_path::JsonPath;
pub use shape::shape;
