//! Kelson S3: files in a bucket of Amazon S3 or of a server that is compatible with it (signature version 4).
//!
//! `rusty-s3` signs the requests and reads the answers. They are sent by the client's transport, with its verifier of
//! certificates and `HTTPS_PROXY`. A signature is part of a URL, so no URL is ever logged or part of an error.
//!
//! # Rooms
//! A file imports from its own row and from the rows above it; `cargo xtask tidy` checks it.
//!
//! | room | holds |
//! |---|---|
//! | `error`, `credentials` | errors; keys from a file or from variables |
//! | `request` | one signed request, repeated while the fault may pass |
//! | `bucket` | the files of a bucket |
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod bucket;
mod credentials;
mod error;
mod request;
#[cfg(test)]
mod tests;

pub use bucket::{BucketOptions, Lookup, S3Bucket, StoredFile};
pub use credentials::S3Keys;
pub use error::S3Error;
