//! Kelson admission: the chain between authorization and storage, and its plugins.
//!
//! The first rejection ends a request. All mutating passes run before the validating ones. Plugins read other objects
//! through [`kelson_auth::Objects`]; no plugin accesses the store, and only `kelson-webhook` accesses the network.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod attributes;
pub mod chain;
pub mod configuration;
pub mod containers;
mod dependencies;
pub mod dynamic;
pub mod explain;
pub mod metrics;
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
pub use plugin::{AsyncPlugin, Plugin};
pub use plugins::priority::system_priority_classes;
pub use registry::{AdmissionOptions, BuildError, build, default_plugins, feature_gates, known_plugins};

#[cfg(test)]
mod testing;
