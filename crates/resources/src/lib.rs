//! Kelson resources: one file per kind: defaults, validation, update rules, subresources, table columns.
//!
//! Pure functions over JSON trees. Decoding, storing, names, uids and timestamps are the API server's; which fields a
//! type has is the schema's. Look a kind up with [`strategy`]; convert between stored and served forms with [`convert`].
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod addresses;
mod api_services;
mod apps;
mod autoscaling;
mod batch;
mod certificates;
mod column;
mod conditions;
mod convert;
mod core;
mod definitions;
mod gated;
mod generic;
pub mod metadata;
mod names;
mod networking;
mod options;
mod parts;
mod pod;
mod policy;
mod rbac;
mod registry;
mod rejudged;
mod rules;
mod storage;
mod strategy;
pub mod table;
mod text;
mod volume_sources;

use kelson_meta::{path, tree};

pub use column::Column;
pub use convert::{convert, storage_gvk};
pub use core::cluster_ip_faults;
pub use gated::GatedFields;
pub use kelson_meta::path::{Errors, GoStruct, Path};
pub use names::NameRule;
pub use options::{Allocation, Connects, Deletion, Durability, Observer, Options, ScalePaths};
pub use parts::Parts;
pub use registry::{all, strategy};
pub use strategy::{Context, Strategy, User};
pub use text::{Text, Texts};
