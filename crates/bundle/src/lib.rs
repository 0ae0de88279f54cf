//! Kelson bundles: one file with all that makes a cluster, sealed with a passphrase.
//!
//! A sealed bundle is a file in the age format, version 1 (<https://age-encryption.org/v1>) with one scrypt recipient; what is
//! in it is a tar archive of regular files in the ustar format. Standard tools read it: `age -d FILE | tar x`, then
//! `sha256sum -c SHA256SUMS`. An unsealed bundle is the archive alone.
//!
//! The first entry is `bundle.json` ([`Manifest`]), the last is `SHA256SUMS` with the digests of all others. A bundle without
//! the last entry is truncated. Everything is streamed; the sizes of all parts are bounded ([`ENTRIES_MAX`], [`ENTRY_BYTES_MAX`],
//! [`TOTAL_BYTES_MAX`]).
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `error`, `key` | errors; passphrases and how a key is derived from them |
//! | `header`, `name`, `manifest` | the header of the age format; names of entries; the first entry |
//! | `stream` | encryption and decryption of a stream in chunks |
//! | `archive` | headers and padding of the archive |
//! | `write`, `read` | writing and extracting |
//! | `place` | the content of a bundle in a data directory |
//! | `join` | what a joining server receives |
//!
//! Files are read and written in the lane for files, or by a command that does nothing else.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod archive;
mod error;
mod header;
pub mod join;
mod key;
mod manifest;
mod name;
mod place;
mod read;
mod stream;
mod write;

pub use archive::{ENTRIES_MAX, ENTRY_BYTES_MAX, TOTAL_BYTES_MAX};
pub use error::BundleError;
pub use key::Passphrase;
pub use manifest::{FORMAT, MANIFEST, Manifest, StoreSummary};
pub use place::{PARTS, Staged, complete};
pub use read::{Entry, Extracted, extract, is_sealed};
pub use write::Writer;
