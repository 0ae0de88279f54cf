//! Reads image archives that other tools saved: OCI layouts (`skopeo`, `buildah`, `docker buildx`, `ctr`) and `docker
//! save`, plain or gzip. Whatever the form, what comes out is per image one manifest for this machine and its blobs.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use super::tar::Index;
use super::{Descriptor, architecture, digest, digest_of, media_type};

/// Largest JSON document read from an archive.
const JSON_BYTES_MAX: u64 = 4 << 20;
/// Largest archive after decompression.
const UNPACKED_BYTES_MAX: u64 = 64 << 30;
/// How deep indexes may nest.
const INDEX_DEPTH_MAX: usize = 4;

/// Why an archive cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file cannot be read, or is no tar.
    #[error("{}: {source}", path.display())]
    Io {
        /// Where the archive is.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The file is a tar, but not of an image that can be used.
    #[error("{}: {message}", path.display())]
    Invalid {
        /// Where the archive is.
        path: PathBuf,
        /// What is wrong with its content.
        message: String,
    },
}

/// One blob of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// Digest of the content, `sha256:…`, by which manifests name it.
    pub digest: String,
    /// Length in bytes.
    pub size: u64,
    /// What it is, for a manifest that points to it.
    pub media_type: String,
    /// Where the bytes are.
    pub content: BlobContent,
}

/// The bytes of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlobContent {
    /// In the archive, from this offset on.
    File(u64),
    /// Made while the archive was read; a manifest for instance that `docker save` leaves out.
    Memory(Vec<u8>),
}

/// One image of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedImage {
    /// Full names, at least one.
    pub names: Vec<String>,
    /// What names the configuration and the layers.
    pub manifest: Blob,
    /// Configuration and layers, in the manifest's order.
    pub children: Vec<Blob>,
}

/// An opened archive.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    file: File,
    index: Index,
}

#[derive(Deserialize)]
struct OciIndex {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct OciManifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Archive {
    /// Opens the archive; gzip is unpacked into an unnamed file beside it. Blocks.
    ///
    /// # Errors
    /// When the file cannot be read or is no tar.
    pub fn open(path: &Path) -> Result<Self, ArchiveError> {
        let fail = |source| ArchiveError::Io { path: path.to_path_buf(), source };
        let mut file = File::open(path).map_err(fail)?;
        let mut magic = [0_u8; 4];
        let got = file.read(&mut magic).map_err(fail)?;
        file.seek(SeekFrom::Start(0)).map_err(fail)?;
        if got >= 2 && magic[..2] == [0x1f, 0x8b] {
            file = unpack(file, path).map_err(fail)?;
        } else if magic == [0x28, 0xb5, 0x2f, 0xfd] {
            return Err(ArchiveError::Invalid {
                path: path.to_path_buf(),
                message: "zstd-compressed archives are not supported: decompress it first".to_owned(),
            });
        }
        let index = Index::read(BufReader::new(&file)).map_err(fail)?;
        Ok(Self { path: path.to_path_buf(), file, index })
    }

    /// A second handle on the archive's bytes, for sending blobs.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn reader(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// The images for this machine's processor. Reads every blob once to check it.
    ///
    /// # Errors
    /// When there is none, or one is incomplete or damaged.
    pub fn images(&self) -> Result<Vec<ArchivedImage>, ArchiveError> {
        // `docker save` of today writes both forms; only the older one has all names.
        let docker = self.json::<Vec<DockerImage>>("manifest.json")?;
        let images = match (self.json::<OciIndex>("index.json")?, docker) {
            (Some(index), docker) => self.oci_images(&index, docker.unwrap_or_default())?,
            (None, Some(docker)) => {
                docker.iter().map(|image| self.docker_image(image)).collect::<Result<Vec<_>, _>>()?
            }
            (None, None) => {
                return Err(self.invalid("not an image archive: it has neither index.json nor manifest.json"));
            }
        };
        if images.is_empty() {
            return Err(self.invalid(format!("no image for linux/{} in the archive", architecture())));
        }
        Ok(images)
    }

    fn oci_images(&self, index: &OciIndex, docker: Vec<DockerImage>) -> Result<Vec<ArchivedImage>, ArchiveError> {
        let mut images: Vec<ArchivedImage> = Vec::new();
        for top in &index.manifests {
            let Some(descriptor) = self.pick(top, 0)? else { continue };
            let manifest = self.blob(&descriptor)?;
            let content: OciManifest = self.parse(&blob_path(&descriptor.digest), &self.bytes(&descriptor.digest)?)?;
            let mut names = Vec::new();
            let tags = docker.iter().filter(|d| d.config.ends_with(hex(&content.config.digest)));
            for tag in tags.flat_map(|d| d.repo_tags.iter().flatten()) {
                names.push(self.name(tag)?);
            }
            if names.is_empty() {
                names.push(self.annotated_name(top)?);
            }
            names.dedup();
            if let Some(known) = images.iter_mut().find(|i| i.manifest.digest == descriptor.digest) {
                known.names.extend(names);
                known.names.sort();
                known.names.dedup();
                continue;
            }
            let children = std::iter::once(&content.config).chain(&content.layers).map(|d| self.blob(d));
            images.push(ArchivedImage { names, manifest, children: children.collect::<Result<_, _>>()? });
        }
        Ok(images)
    }

    /// The manifest for this machine that a descriptor leads to, if any.
    fn pick(&self, descriptor: &Descriptor, depth: usize) -> Result<Option<Descriptor>, ArchiveError> {
        let fits =
            |d: &Descriptor| d.platform.as_ref().is_none_or(|p| p.os == "linux" && p.architecture == architecture());
        if !matches!(descriptor.media_type.as_str(), media_type::INDEX | media_type::DOCKER_LIST) {
            return Ok(fits(descriptor).then(|| descriptor.clone()));
        }
        if depth >= INDEX_DEPTH_MAX {
            return Err(self.invalid("indexes nest too deep"));
        }
        let nested: OciIndex = self.parse(&blob_path(&descriptor.digest), &self.bytes(&descriptor.digest)?)?;
        for one in nested.manifests.iter().filter(|d| fits(d)) {
            // Archives of one platform keep the full index and leave the other platforms' blobs out.
            if self.index.find(&blob_path(&one.digest)).is_some()
                && let Some(found) = self.pick(one, depth + 1)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn annotated_name(&self, descriptor: &Descriptor) -> Result<String, ArchiveError> {
        if let Some(name) = descriptor.annotations.get("io.containerd.image.name") {
            return self.name(name);
        }
        match descriptor.annotations.get("org.opencontainers.image.ref.name") {
            Some(full) if full.contains([':', '/']) => self.name(full),
            // Only a tag (or nothing): the file's name has to do.
            tag => {
                let stem = self.path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
                let stem = stem.split(".tar").next().unwrap_or_default().trim_end_matches(".tgz").to_owned();
                self.name(&format!("{stem}:{}", tag.map_or("latest", String::as_str)))
            }
        }
    }

    fn docker_image(&self, image: &DockerImage) -> Result<ArchivedImage, ArchiveError> {
        let config = self.member(&image.config, "application/vnd.docker.container.image.v1+json")?;
        let mut layers = Vec::new();
        for path in &image.layers {
            let mut layer = self.member(path, "application/vnd.docker.image.rootfs.diff.tar")?;
            if let BlobContent::File(offset) = layer.content
                && self.starts_with_gzip(offset)?
            {
                layer.media_type.push_str(".gzip");
            }
            layers.push(layer);
        }
        let point = |b: &Blob| json!({ "mediaType": b.media_type, "digest": b.digest, "size": b.size });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": point(&config),
            "layers": layers.iter().map(point).collect::<Vec<Value>>(),
        })
        .to_string()
        .into_bytes();
        let manifest = Blob {
            digest: digest(&manifest),
            size: manifest.len() as u64,
            media_type: "application/vnd.docker.distribution.manifest.v2+json".to_owned(),
            content: BlobContent::Memory(manifest),
        };
        let tags = image.repo_tags.iter().flatten();
        let mut names: Vec<String> = tags.map(|t| self.name(t)).collect::<Result<_, _>>()?;
        if names.is_empty() {
            return Err(self.invalid("an image in the archive has no name: save it by name, not by ID"));
        }
        names.dedup();
        Ok(ArchivedImage { names, manifest, children: std::iter::once(config).chain(layers).collect() })
    }

    fn blob(&self, descriptor: &Descriptor) -> Result<Blob, ArchiveError> {
        let blob = self.member(&blob_path(&descriptor.digest), &descriptor.media_type)?;
        if blob.digest != descriptor.digest {
            return Err(self.invalid(format!("blob {} is damaged: its digest is {}", descriptor.digest, blob.digest)));
        }
        Ok(blob)
    }

    fn member(&self, path: &str, media_type: &str) -> Result<Blob, ArchiveError> {
        let (offset, size) =
            self.index.find(path).ok_or_else(|| self.invalid(format!("{path} is missing from the archive")))?;
        let (digest, _) = digest_of(self.at(offset)?.take(size)).map_err(|e| self.io(e))?;
        Ok(Blob { digest, size, media_type: media_type.to_owned(), content: BlobContent::File(offset) })
    }

    fn bytes(&self, digest: &str) -> Result<Vec<u8>, ArchiveError> {
        let path = blob_path(digest);
        self.document(&path)?.ok_or_else(|| self.invalid(format!("{path} is missing from the archive")))
    }

    fn document(&self, path: &str) -> Result<Option<Vec<u8>>, ArchiveError> {
        let Some((offset, size)) = self.index.find(path) else { return Ok(None) };
        if size > JSON_BYTES_MAX {
            return Err(self.invalid(format!("{path} is larger than {JSON_BYTES_MAX} bytes")));
        }
        let mut bytes = Vec::new();
        self.at(offset)?.take(size).read_to_end(&mut bytes).map_err(|e| self.io(e))?;
        Ok(Some(bytes))
    }

    fn json<T: for<'de> Deserialize<'de>>(&self, path: &str) -> Result<Option<T>, ArchiveError> {
        self.document(path)?.map(|bytes| self.parse(path, &bytes)).transpose()
    }

    fn parse<T: for<'de> Deserialize<'de>>(&self, path: &str, bytes: &[u8]) -> Result<T, ArchiveError> {
        serde_json::from_slice(bytes).map_err(|e| self.invalid(format!("{path}: {e}")))
    }

    fn at(&self, offset: u64) -> Result<impl Read, ArchiveError> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(offset)).map_err(|e| self.io(e))?;
        Ok(BufReader::with_capacity(1 << 16, file))
    }

    fn starts_with_gzip(&self, offset: u64) -> Result<bool, ArchiveError> {
        let mut magic = [0_u8; 2];
        self.at(offset)?.read_exact(&mut magic).map_err(|e| self.io(e))?;
        Ok(magic == [0x1f, 0x8b])
    }

    fn name(&self, name: &str) -> Result<String, ArchiveError> {
        super::normalize(name).map_err(|e| self.invalid(e))
    }

    fn io(&self, source: io::Error) -> ArchiveError {
        ArchiveError::Io { path: self.path.clone(), source }
    }

    fn invalid(&self, message: impl Into<String>) -> ArchiveError {
        ArchiveError::Invalid { path: self.path.clone(), message: message.into() }
    }
}

/// The labels that keep a manifest's blobs from the runtime's garbage collection.
pub(crate) fn gc_labels(image: &ArchivedImage) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    for (at, child) in image.children.iter().enumerate() {
        // The first child is the configuration, the others are layers, lowest first.
        let key = match at.checked_sub(1) {
            None => "containerd.io/gc.ref.content.config".to_owned(),
            Some(layer) => format!("containerd.io/gc.ref.content.l.{layer}"),
        };
        labels.insert(key, child.digest.clone());
    }
    labels
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

fn hex(digest: &str) -> &str {
    digest.strip_prefix("sha256:").unwrap_or(digest)
}

/// Unpacks gzip into a file without a name in the archive's directory (or the temporary one), gone with its handle.
fn unpack(packed: File, path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let beside = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = Mode::RUSR | Mode::WUSR;
    let file = open(beside, flags, mode).or_else(|_| open(std::env::temp_dir(), flags, mode))?;
    let mut file = File::from(file);
    let mut unpacked = flate2::read::MultiGzDecoder::new(BufReader::new(packed)).take(UNPACKED_BYTES_MAX);
    io::copy(&mut unpacked, &mut file)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::build::NewImage;
    use super::super::tar::Writer;
    use super::*;

    fn images(bytes: &[u8], file_name: &str) -> Result<Vec<ArchivedImage>, ArchiveError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(file_name);
        std::fs::write(&path, bytes).unwrap();
        Archive::open(&path)?.images()
    }

    fn built() -> Vec<u8> {
        let mut layer = Writer::new();
        layer.file("x", 0o644, b"content");
        NewImage { name: "a/b:1".into(), layers: vec![layer.finish()], ..Default::default() }.to_archive().unwrap()
    }

    #[test]
    fn what_is_built_is_read_plain_and_packed() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&built()).unwrap();
        for (bytes, name) in [(built(), "i.tar"), (packed.finish().unwrap(), "i.tar.gz")] {
            let images = images(&bytes, name).unwrap();
            assert_eq!(images.len(), 1);
            assert_eq!(images[0].names, ["docker.io/a/b:1"]);
            assert_eq!(images[0].children.len(), 2);
            assert_eq!(gc_labels(&images[0])["containerd.io/gc.ref.content.l.0"], images[0].children[1].digest);
        }
    }

    #[test]
    fn docker_save_is_read() {
        let mut tar = Writer::new();
        tar.file("abc.json", 0o644, b"{}").file("l/layer.tar", 0o644, &[0; 1024]);
        tar.file(
            "manifest.json",
            0o644,
            br#"[{"Config":"abc.json","RepoTags":["web:2","web:latest"],"Layers":["l/layer.tar"]}]"#,
        );
        let images = images(&tar.finish(), "d.tar").unwrap();
        assert_eq!(images[0].names, ["docker.io/library/web:2", "docker.io/library/web:latest"]);
        let BlobContent::Memory(manifest) = &images[0].manifest.content else { panic!("made here") };
        let manifest: Value = serde_json::from_slice(manifest).unwrap();
        assert_eq!(manifest["layers"][0]["digest"], digest(&[0; 1024]));
    }

    #[test]
    fn a_name_is_taken_from_the_file_at_last() {
        let bytes = String::from_utf8(built()).unwrap();
        let plain = bytes.replace("io.containerd.image.name", "io.containerd.image.nope");
        // The names inside tar contents are the same length: only the header's sum of that member is unchanged.
        assert_eq!(images(plain.as_bytes(), "web.tar").unwrap()[0].names, ["docker.io/library/web:1"]);
    }

    #[test]
    fn damage_is_named() {
        let mut bytes = built();
        let at = bytes.windows(7).rposition(|w| w == b"content").unwrap();
        bytes[at] ^= 1;
        let message = images(&bytes, "i.tar").expect_err("damaged").to_string();
        assert!(message.contains("is damaged"), "{message}");
        let mut other = Writer::new();
        other.file("hello", 0o644, b"x");
        let message = images(&other.finish(), "i.tar").expect_err("no image").to_string();
        assert!(message.contains("not an image archive"), "{message}");
    }
}
