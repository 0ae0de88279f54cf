//! Kelson resources: one file per kind with defaults, validation, update rules, subresources and table columns.
//!
//! Pure functions over JSON trees. Decoding, storing, names, uids and timestamps are the API server's; which fields a
//! type has is the schema's. Look a kind up with [`strategy`]; convert between stored and served forms with [`convert`].
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `addresses`, `names`, `column`, `gated/`, `rejudged`, `text` | IP addresses and ranges, rules for names, columns of tables, the fields of each feature gate, kinds whose metadata is validated again on update |
//! | `options` | facts about a kind, owned, so that a kind can be made at run time |
//! | `rules`, `conditions`, `table`, `metadata` | rules that several kinds share |
//! | `volume_sources` | volume sources of pods, PersistentVolumes and inline volumes |
//! | `strategy` | the trait of a kind |
//! | `pod`, `core`, `apps`, `autoscaling`, `batch`, `certificates`, `networking`, `policy`, `rbac`, `storage`, `definitions`, `api_services`, `generic` | one file for each kind; `generic` has the kinds with few rules |
//! | `registry`, `convert` | the list of kinds, and conversion between versions |
//!
//! The file of a kind does not name a step of a request. What the API server must know about a kind is a field of `Options` or
//! a method of `Strategy`. What discovery publishes is read from the table of `kelson-schema`.
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
