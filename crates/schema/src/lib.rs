//! Kelson schema: what every built-in type looks like, as generated data: JSON names, protobuf numbers, when a field is
//! written, list and merge keys, kinds, and the resources that are served. It reads and writes nothing: `codec` and `patch`
//! do, by this table. Renew it with `cargo xtask definitions` (see `xtask/src/definitions.rs`). What things mean is written by hand,
//! in `descriptions/`.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `rows` | the format of the generated table |
//! | `generated/` | the table; only `cargo xtask definitions` writes it |
//! | `table`, `declaration`, `resource` | types, and the resources that are served |
//! | `shape` | the type at one position of a document, built-in or structural |
//! | `description`, `lifecycle`, `storage` | the meaning of fields, versions and their removal, the path of each resource in etcd |
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
