//! Container images as files: building them, and reading archives of other tools, without a registry.
//! `crate::containerd` sends them to a runtime.

pub mod archive;
pub mod build;
mod layout;
mod open;
pub mod pause;
mod platform;
pub mod reference;
pub mod tar;

use std::fmt::Write as _;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use archive::{Archive, ArchiveError};
pub use build::{ImageConfig, NewImage};
pub use reference::normalize;

/// OCI's media types.
pub mod media_type {
    /// The manifest of an image for one platform.
    pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    /// A list of manifests.
    pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    /// The configuration of an image.
    pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
    /// An uncompressed layer.
    pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
    /// A layer compressed with gzip.
    pub const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
    /// Docker's list of manifests.
    pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
}

/// An OCI descriptor: a reference to a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// The media type of the blob.
    #[serde(default)]
    pub media_type: String,
    /// The digest: `sha256:` and 64 hex digits.
    pub digest: String,
    /// The length in bytes.
    pub size: u64,
    /// The platform, in an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Annotations, for instance names.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub annotations: std::collections::BTreeMap<String, String>,
}

/// Operating system and CPU architecture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// Go's name of the architecture.
    pub architecture: String,
    /// Go's name of the operating system.
    pub os: String,
    /// The variant of the architecture, such as `v7` of `arm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// Returns Go's name of this machine's architecture, as images use it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "riscv64" => "riscv64",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// Returns `sha256:…` of the bytes.
pub fn digest(bytes: &[u8]) -> String {
    digest_text(&Sha256::digest(bytes))
}

/// Returns `sha256:…` and the length of what the reader returns.
pub(crate) fn digest_of(mut reader: impl Read) -> io::Result<(String, u64)> {
    let mut hash = Sha256::new();
    let length = io::copy(&mut reader, &mut hash)?;
    Ok((digest_text(&hash.finalize()), length))
}

fn digest_text(hash: &[u8]) -> String {
    hash.iter().fold(String::from("sha256:"), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
