//! Platform and name of images in an OCI layout.

use serde::Deserialize;
use serde_json::Value;

use super::{Descriptor, Platform};

/// The fields of an image's configuration that show that it is an image, and its platform.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ImageConfiguration {
    architecture: String,
    os: String,
    variant: Option<String>,
    rootfs: Option<Value>,
}

impl ImageConfiguration {
    /// Returns the image's platform; `None` for another artifact (an SBOM, a signature).
    pub(super) fn platform(self) -> Option<Platform> {
        let is_image = self.rootfs.is_some() && !self.architecture.is_empty() && !self.os.is_empty();
        is_image.then_some(Platform { architecture: self.architecture, os: self.os, variant: self.variant })
    }
}

/// The name of an image in a descriptor of a layout's top index.
pub(super) enum Annotated<'a> {
    /// The image's name.
    Name(&'a str),
    /// Only a tag.
    Tag(&'a str),
    /// The layout names no image.
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
