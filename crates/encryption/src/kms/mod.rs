//! `kms` v2: each write is encrypted with a key derived from a seed, and a key service outside has encrypted the seed. The
//! service is asked for a new seed when it names another key than before, and to decrypt seeds that are not in memory: once
//! after a start for each that was ever used. Writes go on for three minutes after the service was last well; reads do not need
//! it once a seed is in memory.
#![allow(clippy::disallowed_methods, reason = "blocking: the store's own thread waits for the key of what it reads")]

mod probe;
mod proto;
mod provider;
mod service;
mod state;

pub(crate) use provider::{Kms, KmsOptions};
