//! Kelson credentials: docker keyring and credential provider plugins, and the pulls that use them. It knows no API
//! client and no container runtime: service accounts, events and pulls are effects behind traits.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `secret`, `pattern`, `reference`, `metrics`, `readable` | images and what matches them, secrets |
//! | `config/` | the configuration of providers |
//! | `events`, `plugin/` | events of pods and nodes; calls to plugins, through a cache and shared runs |
//! | `keyring/` | all sources in one order |
//! | `records/` | which pods may use which images |
//! | `pull/`, `check` | what the node agent calls; `kelson credential-provider check` |
//!
//! Files are read in the lane for files. The process of a plugin runs in a task that ends with the last pod that waits for it.
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
