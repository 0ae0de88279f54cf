//! The `EncryptionConfiguration` file after validation.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane of files")]

mod file;
mod validate;

use std::path::Path;
use std::time::Duration;

use zeroize::Zeroizing;

pub(crate) use validate::read;

/// A valid configuration.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Config {
    /// The entries in the order of the file: the first one that names a resource or matches it by a pattern applies.
    pub resources: Vec<ResourceConfig>,
    /// `sha256:` and hex of the file.
    pub hash: String,
}

/// The resources of one entry, and the providers that encrypt them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ResourceConfig {
    pub resources: Vec<GroupResource>,
    pub providers: Vec<Provider>,
}

/// `PLURAL.GROUP` as in the file; either may be `*`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct GroupResource {
    pub group: String,
    pub resource: String,
}

impl GroupResource {
    pub fn new(group: &str, resource: &str) -> Self {
        Self { group: group.to_owned(), resource: resource.to_owned() }
    }

    /// Parses an entry of `resources`.
    pub fn parse(text: &str) -> Self {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        Self::new(group, resource)
    }
}

impl std::fmt::Display for GroupResource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.resource.as_str(), self.group.as_str()) {
            ("*", "") => f.write_str("*."),
            (resource, "") => f.write_str(resource),
            (resource, group) => write!(f, "{resource}.{group}"),
        }
    }
}

/// One provider of the file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Provider {
    /// Leaves things as they are.
    Identity,
    AesCbc(Vec<NamedKey>),
    AesGcm(Vec<NamedKey>),
    SecretBox(Vec<NamedKey>),
    /// A key service, version 2.
    Kms {
        name: String,
        endpoint: String,
        timeout: Duration,
    },
}

/// A named key, which is wiped from memory when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct NamedKey {
    pub name: String,
    pub key: Zeroizing<Vec<u8>>,
}

/// The reason why a configuration is rejected; it never contains a key.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("error while loading file: error reading encryption provider configuration file {path:?}: {why}")]
    File {
        /// The value of `--encryption-provider-config`.
        path: String,
        /// The error of the operating system.
        why: String,
    },
    /// The file is not an `EncryptionConfiguration`.
    #[error("error decoding encryption provider configuration file {path:?}: {why}")]
    Decode {
        /// The value of `--encryption-provider-config`.
        path: String,
        /// The errors of the file.
        why: String,
    },
    /// The configuration has invalid fields.
    #[error("error while parsing file: {0}")]
    Invalid(String),
    /// A resource can never be reached by its entry.
    #[error("error while building transformers: {0}")]
    Masked(String),
    /// A key service is unhealthy, so values that it encrypted could not be decrypted.
    #[error("health check for new transformers failed: {0}")]
    Unhealthy(String),
}

/// The bytes of the file, wiped when they go, and their digest.
#[expect(clippy::disallowed_methods, reason = "called in the lane for files")]
pub(crate) fn load(path: &Path) -> Result<(Zeroizing<Vec<u8>>, String), ConfigError> {
    let fault = |why: String| ConfigError::File { path: path.display().to_string(), why };
    let size = std::fs::metadata(path).map_err(|e| fault(e.to_string()))?.len();
    if size > kelson_codec::DOCUMENT_BYTES_MAX as u64 {
        return Err(fault("the file is too large".to_owned()));
    }
    let bytes = Zeroizing::new(std::fs::read(path).map_err(|e| fault(e.to_string()))?);
    if bytes.is_empty() {
        return Err(fault("the file is empty".to_owned()));
    }
    let hash = crate::metrics::digest(&bytes);
    Ok((bytes, hash))
}
