//! Kelson resources: one file per kind: defaults, validation, update rules, subresources, table columns.
//!
//! Pure functions over JSON trees. Decoding, storing, names, uids and timestamps are the API server's; which fields a
//! type has is the schema's. Look a kind up with [`strategy`]; convert between stored and served forms with [`convert`].

mod apps;
mod autoscaling;
mod batch;
mod certificates;
mod convert;
mod core;
mod generic;
pub mod metadata;
mod networking;
mod path;
mod pod;
mod policy;
mod rbac;
mod registry;
mod rules;
mod storage;
mod strategy;
pub mod table;
mod tree;

pub use convert::{convert, storage_gvk};
pub use path::{Errors, Path};
pub use registry::{all, strategy};
pub use strategy::{Column, Context, Deletion, Options, SCALE, ScalePaths, Strategy, User};
