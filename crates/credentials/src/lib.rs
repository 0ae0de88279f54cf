//! Kelson credentials: docker keyring and credential provider plugins, and the pulls that use them. It knows no API
//! client and no container runtime: service accounts, events and pulls are effects behind traits.
//!
//! From the bottom: [`pattern`] and [`reference`] say what an image is and what matches it; [`config`] reads the
//! providers' configuration; [`plugin`] asks them, through a cache and shared runs; [`keyring`] puts all sources in
//! order; [`records`] remember who may use what is there; [`pull`] is what the node agent calls.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod check;
pub mod config;
pub mod events;
pub mod keyring;
pub mod metrics;
pub mod pattern;
pub mod plugin;
pub mod pull;
mod readable;
pub mod records;
pub mod reference;
pub mod secret;

pub use events::Events;
pub use keyring::{Candidate, Keyring, NodeConfig, PullSecret, Source};
pub use metrics::Metrics;
pub use plugin::{PodIdentity, ProcessExecutor, Providers, ServiceAccounts};
pub use pull::{EnsureError, EnsureRequest, Present, PullEffects, PullManager, PullOptions, PullPolicy};
pub use secret::Secret;
