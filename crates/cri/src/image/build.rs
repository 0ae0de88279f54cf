//! Builds images without a builder: layers as tar bytes and a configuration become one OCI archive that any runtime can
//! import. Used for the pause image, for tests, and by `make images`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use super::tar::Writer;
use super::{architecture, digest, media_type};

/// The defaults for containers of an image.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ImageConfig {
    /// The program and its fixed arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// Arguments that the pod's `args` replace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    /// Environment variables, `NAME=value` each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// The user: `user`, `uid` or `uid:gid`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// The working directory.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
    /// The signal that requests the program to end.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stop_signal: String,
    /// The labels of the image's configuration.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// An image to build for this machine's platform.
#[derive(Debug, Clone, Default)]
pub struct NewImage {
    /// The full or short name; see [`super::normalize`].
    pub name: String,
    /// The layers, lowest first, each an uncompressed tar archive.
    pub layers: Vec<Vec<u8>>,
    /// The defaults for containers of the image.
    pub config: ImageConfig,
}

impl NewImage {
    /// Returns the OCI archive. Equal input gives equal bytes.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn to_archive(&self) -> Result<Vec<u8>, String> {
        let name = super::normalize(&self.name)?;
        let digests: Vec<String> = self.layers.iter().map(|l| digest(l)).collect();
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": digests },
            "history": digests.iter().map(|_| json!({ "created_by": "kelson" })).collect::<Vec<_>>(),
        })
        .to_string();
        let layers: Vec<_> = self
            .layers
            .iter()
            .zip(&digests)
            .map(|(layer, digest)| json!({ "mediaType": media_type::LAYER, "digest": digest, "size": layer.len() }))
            .collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type::MANIFEST,
            "config": { "mediaType": media_type::CONFIG, "digest": digest(config.as_bytes()), "size": config.len() },
            "layers": layers,
        })
        .to_string();
        let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        let index = json!({
            "schemaVersion": 2,
            "mediaType": media_type::INDEX,
            "manifests": [{
                "mediaType": media_type::MANIFEST,
                "digest": digest(manifest.as_bytes()),
                "size": manifest.len(),
                "platform": { "architecture": architecture(), "os": "linux" },
                "annotations": { "io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag },
            }],
        })
        .to_string();
        let mut tar = Writer::new();
        tar.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
        tar.file("index.json", 0o644, index.as_bytes()).dir("blobs", 0o755).dir("blobs/sha256", 0o755);
        let mut blobs: BTreeMap<String, &[u8]> = BTreeMap::new();
        blobs.insert(digest(manifest.as_bytes()), manifest.as_bytes());
        blobs.insert(digest(config.as_bytes()), config.as_bytes());
        blobs.extend(digests.into_iter().zip(self.layers.iter().map(Vec::as_slice)));
        for (digest, content) in blobs {
            tar.file(&format!("blobs/{}", digest.replace(':', "/")), 0o644, content);
        }
        Ok(tar.finish())
    }
}

/// Returns a layer with a static busybox in `/bin`, links for the applets listed by `busybox --list`, and the few files
/// that a shell expects.
pub fn busybox_layer(binary: &[u8], applets: &[&str]) -> Vec<u8> {
    let mut tar = Writer::new();
    for (dir, mode) in [
        ("bin", 0o755),
        ("dev", 0o755),
        ("etc", 0o755),
        ("home", 0o755),
        ("proc", 0o755),
        ("root", 0o700),
        ("sys", 0o755),
        ("tmp", 0o1777),
        ("usr", 0o755),
        ("var", 0o755),
    ] {
        tar.dir(dir, mode);
    }
    tar.file("bin/busybox", 0o755, binary);
    for applet in applets.iter().filter(|a| !a.is_empty() && **a != "busybox" && !a.contains('/')) {
        tar.symlink(&format!("bin/{applet}"), "/bin/busybox");
    }
    tar.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n");
    tar.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n");
    tar.symlink("usr/bin", "/bin");
    tar.finish()
}
