//! Kelson admission: the chain between authorization and storage, and its plugins.
//!
//! The first rejection ends a request. All mutating passes run before the validating ones. Plugins read other objects
//! through [`kelson_auth::Objects`]; nothing here knows the store, and the network only through `kelson-webhook`.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `configuration`, `explain`, `old_object`, `attributes`, `metrics`, `dependencies`, `containers` | sections of the configuration file, what a plugin changed, the stored object, attributes of a request, what plugins depend on, the walk over containers |
//! | `plugin` | the traits |
//! | `dynamic/` | what configured webhooks and policies share: configurations, decoded once for each change, and those from files; which requests they match; the object in the version that they ask for |
//! | `chain` | the order of calls |
//! | `plugins/`, `webhooks/`, `policies/` | one file for each concern; calls to webhooks and the result of a failure; expressions of administrators, evaluated here |
//! | `registry` | one row for each plugin |
//!
//! Plugins read the objects that configure them as trees, decoded once for each change. They return warnings, audit annotations
//! and changes to the caller, and walk the containers of a pod through `containers` only. A plugin that upstream has behind
//! feature gates names them in its row of `registry`; one that is gated in part reads the set in `dependencies`. Admission sees
//! objects in their stored form, and webhooks and policies get another version from `Versions`. `docs/admission.md` describes
//! what an operator sees.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod attributes;
pub mod chain;
pub mod configuration;
pub mod containers;
mod dependencies;
pub mod dynamic;
pub mod explain;
pub mod metrics;
mod old_object;
pub mod plugin;
pub mod plugins;
pub mod policies;
pub mod registry;
pub mod webhooks;

pub use attributes::{Attributes, Notes, Operation, OperationOptions, Operations, Reinvocation, Rounds};
pub use chain::Chain;
pub use dependencies::{Dependencies, KindMapper, NamespaceMaker, QuotaCharges, Versions};
pub use explain::Changed;
pub use metrics::Metrics;
pub use old_object::{LazyObject, OldObject};
pub use plugin::{AsyncPlugin, Plugin};
pub use plugins::priority::system_priority_classes;
pub use registry::{AdmissionOptions, BuildError, build, default_plugins, feature_gates, known_plugins};

#[cfg(test)]
mod testing;
