//! Encryption at rest: from an `EncryptionConfiguration` (`apiserver.config.k8s.io/v1`) to what stands on the disk for a
//! record, and back. Values have the reference's form, `k8s:enc:PROVIDER:v1:KEY:` and what the provider makes of the plaintext
//! and the record's path, so what either wrote the other can decrypt.
//!
//! `config` says what a file means; `transform` holds one file per way of encrypting, `kms` the one that asks a key service
//! (KMS v2, KEP-3299); `chain` tries the providers of a resource in their order; `table` finds the chain of a resource;
//! `encryption` is the face: what the store asks, reloading, health. Keys are wiped from memory when they go, and never
//! print. Which resources there are, and when something is written, is others' business.
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
