//! What an OCI layout says of its images beside their content: for which machine one is, and how it is called.

use serde::Deserialize;
use serde_json::Value;

use super::{Descriptor, Platform};

/// What of an image's configuration says that it is one, and for whom.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ImageConfiguration {
    architecture: String,
    os: String,
    variant: Option<String>,
    rootfs: Option<Value>,
}

impl ImageConfiguration {
    /// For whom the image is; `None`: it is no image but some other artifact (an SBOM, a signature).
    pub(super) fn platform(self) -> Option<Platform> {
        let is_image = self.rootfs.is_some() && !self.architecture.is_empty() && !self.os.is_empty();
        is_image.then_some(Platform { architecture: self.architecture, os: self.os, variant: self.variant })
    }
}

/// How a descriptor of a layout's first index names its image.
pub(super) enum Annotated<'a> {
    /// The image's name.
    Name(&'a str),
    /// Only a tag.
    Tag(&'a str),
    /// In no way.
    Nothing,
}

pub(super) fn annotated(descriptor: &Descriptor) -> Annotated<'_> {
    if let Some(name) = descriptor.annotations.get("io.containerd.image.name") {
        return Annotated::Name(name);
    }
    match descriptor.annotations.get("org.opencontainers.image.ref.name").map(String::as_str) {
        Some(full) if full.contains([':', '/']) => Annotated::Name(full),
        Some(tag) => Annotated::Tag(tag),
        None => Annotated::Nothing,
    }
}
