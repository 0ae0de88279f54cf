//! `kms` v2: each write is encrypted with a key derived from a seed, and an external key service encrypts the seed. A
//! new seed is requested when the service reports another key. The service decrypts each seed that is not in memory,
//! once after a start. Writes continue for three minutes after the service was last healthy. Reads do not need it once
//! a seed is in memory.
#![allow(clippy::disallowed_methods, reason = "blocking: the store's own thread waits for the key of what it reads")]

mod probe;
mod proto;
mod provider;
mod service;
mod state;

pub(crate) use provider::{Kms, KmsOptions};
