//! Kelson schema: what every built-in type looks like, as generated data: JSON names, protobuf numbers, when a field is
//! written, list and merge keys, kinds, and the resources that are served. It reads and writes nothing: `codec` and `patch`
//! do, by this table. Renew it with `cargo xtask definitions` (see `xtask/src/definitions.rs`). What things mean is written by hand,
//! in `descriptions/`.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod declaration;
pub mod description;
mod generated;
pub mod lifecycle;
pub mod resource;
mod rows;
pub mod sample;
pub mod shape;
pub mod storage;
mod table;

pub use description::Descriptions;
pub use resource::{GroupVersion, Resource, Subresource};
pub use shape::Shape;
pub use table::{Field, FieldType, Kind, ListType, MapType, PatchStrategy, Schema, TypeId};
