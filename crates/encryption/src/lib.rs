//! Encryption at rest: encrypts and decrypts stored records by an `EncryptionConfiguration`
//! (`apiserver.config.k8s.io/v1`). Values have upstream's form, `k8s:enc:PROVIDER:v1:KEY:` and the provider's
//! ciphertext, so that each can decrypt what the other wrote.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `path`, `metrics` | paths of records; metrics |
//! | `transform/`, `config/` | one file for each provider; the meaning of a configuration file |
//! | `kms/` | seeds from a key service (KMS v2, KEP-3299) |
//! | `chain` | the keys of a resource, in order |
//! | `table` | the chain of each resource |
//! | `encryption` | the interface: `AtRest` of the store, reload, health |
//!
//! Keys are wiped from memory when they are dropped and are never printed. Which resources exist, and when a value is written,
//! is decided by the callers.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod chain;
mod config;
mod encryption;
mod kms;
mod metrics;
mod path;
mod table;
mod transform;

pub use config::ConfigError;
pub use encryption::{Encryption, EncryptionOptions};
