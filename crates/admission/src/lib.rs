//! Kelson admission: the chain between authorization and storage, and its plugins.
//!
//! The first refusal ends a request. All mutating passes run before the validating ones. Plugins read other objects
//! through [`kelson_auth::Objects`]; nothing here knows the store or the network.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod attributes;
pub mod chain;
pub mod containers;
mod dependencies;
pub mod plugin;
pub mod plugins;
pub mod registry;

pub use attributes::{Attributes, Notes, Operation, OperationOptions, Operations};
pub use chain::Chain;
pub use dependencies::{Dependencies, KindMapper};
pub use plugin::{AsyncPlugin, Plugin};
pub use plugins::priority::system_priority_classes;
pub use registry::{AdmissionOptions, BuildError, build, default_plugins, known_plugins};

#[cfg(test)]
mod testing;
