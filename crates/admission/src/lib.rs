//! Kelson admission: the chain between authorization and storage, and its plugins.
//!
//! The first refusal ends a request. All mutating passes run before the validating ones. Plugins read other objects
//! through [`kelson_auth::Objects`]; nothing here knows the store or the network.

pub mod attributes;
pub mod chain;
pub mod plugin;

pub use attributes::{Attributes, Notes, Operation, Operations};
pub use chain::Chain;
pub use plugin::{AsyncPlugin, Plugin};
