//! Reads image archives of other tools: OCI layouts (`skopeo`, `buildah`, `docker buildx`, `ctr`) and `docker save`,
//! plain or compressed. For all formats the result is one manifest per image for this machine and its blobs.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use super::layout::{Annotated, ImageConfiguration, annotated};
use super::open::{self, OpenFault};
use super::tar::Index;
use super::{Descriptor, Platform, digest, digest_of, media_type, platform};

/// The maximum size of a JSON document in an archive.
const JSON_BYTES_MAX: u64 = 4 << 20;
/// The maximum depth of nested indexes.
const INDEX_DEPTH_MAX: usize = 4;

/// Why an archive cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file cannot be read, or is not a tar archive.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path of the archive.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The archive does not contain a usable image.
    #[error("{}: {message}", path.display())]
    Invalid {
        /// The path of the archive.
        path: PathBuf,
        /// The fault of the content.
        message: String,
    },
}

/// A blob of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// The digest of the content, `sha256:…`, by which manifests refer to it.
    pub digest: String,
    /// The length in bytes.
    pub size: u64,
    /// The media type, for a manifest that refers to it.
    pub media_type: String,
    /// The location of its bytes.
    pub content: BlobContent,
}

/// The bytes of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlobContent {
    /// The blob is in the archive, at this offset in bytes.
    File(u64),
    /// Created while the archive was read; for instance a manifest that `docker save` leaves out.
    Memory(Vec<u8>),
}

/// An image of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedImage {
    /// Full names, at least one.
    pub names: Vec<String>,
    /// Names by digest (`REPOSITORY@sha256:…`), for pods that pin one: of the manifest, and of the index that refers to
    /// it. Empty for an image whose manifest was created here, which no registry has.
    pub by_digest: Vec<String>,
    /// The manifest, which refers to the configuration and the layers.
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
    /// The platforms that this machine runs, the best first.
    accepted: Vec<Platform>,
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

/// A manifest that this machine could use, and its rank, 0 for the best.
struct Candidate {
    rank: usize,
    manifest: Descriptor,
}

/// An image before names are assigned to those without one.
struct RawImage {
    names: Vec<String>,
    manifest: Blob,
    children: Vec<Blob>,
    /// Digests by which registries know it.
    digests: Vec<String>,
    /// A tag for an image without a name, if there is one; used if it is the only such image in the archive.
    tag: Option<String>,
}

impl Archive {
    /// Opens the archive, `-` for standard input; a compressed one (gzip, zstd, xz) is decompressed into an unnamed
    /// file next to it. Blocks.
    ///
    /// # Errors
    /// The file cannot be read, is not a tar archive, or decompresses to more than the disk may hold.
    pub fn open(path: &Path) -> Result<Self, ArchiveError> {
        let io = |source| ArchiveError::Io { path: path.to_path_buf(), source };
        let invalid = |message: String| ArchiveError::Invalid { path: path.to_path_buf(), message };
        let file = open::open(path).map_err(|fault| match fault {
            OpenFault::Io(source) => io(source),
            other => invalid(other.to_string()),
        })?;
        let index = Index::read(BufReader::new(&file)).map_err(|e| match e.raw_os_error() {
            Some(_) => io(e),
            // The library's messages contain bytes of the file.
            None => invalid("not a tar archive, or truncated".to_owned()),
        })?;
        Ok(Self { path: path.to_path_buf(), file, index, accepted: platform::accepted() })
    }

    /// Opens a second handle on the archive's bytes, for sending blobs.
    ///
    /// # Errors
    /// The process has no free file descriptor.
    pub fn reader(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Returns the images for this machine's platform. Reads every blob once to verify it.
    ///
    /// # Errors
    /// There is none, or one is incomplete or damaged.
    pub fn images(&self) -> Result<Vec<ArchivedImage>, ArchiveError> {
        // Current versions of `docker save` write both formats; only the older one has all names.
        let docker = self.json::<Vec<DockerImage>>("manifest.json")?;
        let mut others = Vec::new();
        let found = match (self.json::<OciIndex>("index.json")?, docker) {
            (Some(index), docker) => self.oci_images(&index, docker.unwrap_or_default(), &mut others)?,
            (None, Some(docker)) => {
                let mut found = Vec::new();
                for image in &docker {
                    found.extend(self.docker_image(image, &mut others)?);
                }
                found
            }
            (None, None) => {
                return Err(self.invalid("not an image archive: it has neither index.json nor manifest.json"));
            }
        };
        if found.is_empty() {
            let wanted = self.accepted.first().map(ToString::to_string).unwrap_or_default();
            others.sort();
            others.dedup();
            return Err(self.invalid(match others.is_empty() {
                true => format!("no image for {wanted} in the archive"),
                false => format!("no image for {wanted} in the archive: it is for {}", others.join(", ")),
            }));
        }
        self.named(found)
    }

    /// Assigns names to images without one. A single one is named after the file; several would take that name from
    /// each other, and have names by digest only.
    fn named(&self, found: Vec<RawImage>) -> Result<Vec<ArchivedImage>, ArchiveError> {
        let nameless = found.iter().filter(|f| f.names.is_empty()).count();
        let mut images = Vec::new();
        for mut one in found {
            let mut by_digest = Vec::new();
            if one.names.is_empty() {
                let stem = self.stem().ok_or_else(|| {
                    self.invalid("the image from standard input has no name; save it with a name or to a file")
                })?;
                one.names.push(match nameless {
                    1 => self.name(&format!("{stem}:{}", one.tag.as_deref().unwrap_or("latest")))?,
                    _ => self.name(&format!("{stem}@{}", one.manifest.digest))?,
                });
            }
            one.names.sort();
            one.names.dedup();
            for name in &one.names {
                let repository = super::reference::repository(name);
                by_digest.extend(one.digests.iter().map(|digest| format!("{repository}@{digest}")));
            }
            by_digest.retain(|name| !one.names.contains(name));
            by_digest.sort();
            by_digest.dedup();
            images.push(ArchivedImage { names: one.names, by_digest, manifest: one.manifest, children: one.children });
        }
        Ok(images)
    }

    /// Returns the file's name without its suffixes, as the name of a repository; `None` for standard input.
    fn stem(&self) -> Option<String> {
        if open::is_standard_input(&self.path) {
            return None;
        }
        let name = self.path.file_name()?.to_string_lossy().to_lowercase();
        let stem = name.split(".tar").next().unwrap_or_default();
        let endings = [".tgz", ".tzst", ".txz"];
        let stem = endings.iter().find_map(|ending| stem.strip_suffix(ending)).unwrap_or(stem);
        Some(stem.to_owned())
    }

    fn oci_images(
        &self,
        index: &OciIndex,
        docker: Vec<DockerImage>,
        others: &mut Vec<String>,
    ) -> Result<Vec<RawImage>, ArchiveError> {
        let mut images: Vec<RawImage> = Vec::new();
        for top in &index.manifests {
            let mut candidates = Vec::new();
            self.candidates(top, 0, &mut candidates, others)?;
            // The first of equal ones.
            let Some(descriptor) = candidates.into_iter().min_by_key(|c| c.rank).map(|c| c.manifest) else { continue };
            let manifest = self.blob(&descriptor)?;
            let content: OciManifest = self.parse(&blob_path(&descriptor.digest), &self.bytes(&descriptor.digest)?)?;
            let mut names = Vec::new();
            let tags = docker.iter().filter(|d| d.config.ends_with(hex(&content.config.digest)));
            for tag in tags.flat_map(|d| d.repo_tags.iter().flatten()) {
                names.push(self.name(tag)?);
            }
            let mut tag = None;
            if names.is_empty() {
                match annotated(top) {
                    Annotated::Name(name) => names.push(self.name(name)?),
                    Annotated::Tag(own) => tag = Some(own.to_owned()),
                    Annotated::Nothing => {}
                }
            }
            if let Some(known) = images.iter_mut().find(|i| i.manifest.digest == descriptor.digest) {
                known.names.extend(names);
                known.digests.push(top.digest.clone());
                continue;
            }
            let children = std::iter::once(&content.config).chain(&content.layers).map(|d| self.blob(d));
            let children = children.collect::<Result<_, _>>()?;
            let digests = vec![descriptor.digest.clone(), top.digest.clone()];
            images.push(RawImage { names, manifest, children, digests, tag });
        }
        Ok(images)
    }

    /// Collects the manifests for this machine that a descriptor refers to, and in `others` the platforms of those for
    /// other machines.
    fn candidates(
        &self,
        descriptor: &Descriptor,
        depth: usize,
        found: &mut Vec<Candidate>,
        others: &mut Vec<String>,
    ) -> Result<(), ArchiveError> {
        if matches!(descriptor.media_type.as_str(), media_type::INDEX | media_type::DOCKER_LIST) {
            if depth >= INDEX_DEPTH_MAX {
                return Err(self.invalid("indexes are nested too deeply"));
            }
            let nested: OciIndex = self.parse(&blob_path(&descriptor.digest), &self.bytes(&descriptor.digest)?)?;
            // Archives with one platform keep the full index and leave out the other platforms' blobs.
            let there = |d: &&Descriptor| self.index.find(&blob_path(&d.digest)).is_some();
            return nested
                .manifests
                .iter()
                .filter(there)
                .try_for_each(|d| self.candidates(d, depth + 1, found, others));
        }
        // As containerd: if the index does not say the platform of a manifest, its configuration does.
        let named = descriptor.platform.clone().filter(|p| !p.architecture.is_empty() || !p.os.is_empty());
        let of = match named {
            Some(platform) => Some(platform),
            None => self.configuration(descriptor)?.platform(),
        };
        let Some(of) = of else { return Ok(()) };
        match platform::rank(&of, &self.accepted) {
            Some(rank) => found.push(Candidate { rank, manifest: descriptor.clone() }),
            None => others.push(of.to_string()),
        }
        Ok(())
    }

    /// Returns the configuration of a manifest; empty if it has none that is an image's.
    fn configuration(&self, manifest: &Descriptor) -> Result<ImageConfiguration, ArchiveError> {
        let content: Value = self.parse(&blob_path(&manifest.digest), &self.bytes(&manifest.digest)?)?;
        let Some(digest) = content["config"]["digest"].as_str() else { return Ok(ImageConfiguration::default()) };
        let Some((_, size)) = self.index.find(&blob_path(digest)) else { return Ok(ImageConfiguration::default()) };
        if size > JSON_BYTES_MAX {
            return Ok(ImageConfiguration::default());
        }
        Ok(serde_json::from_slice(&self.bytes(digest)?).unwrap_or_default())
    }

    /// Reads an image; `None` when it is for another machine.
    fn docker_image(&self, image: &DockerImage, others: &mut Vec<String>) -> Result<Option<RawImage>, ArchiveError> {
        let config = self.member(&image.config, "application/vnd.docker.container.image.v1+json")?;
        let reported: Option<ImageConfiguration> = self.json(&image.config)?;
        if let Some(of) = reported.and_then(ImageConfiguration::platform)
            && platform::rank(&of, &self.accepted).is_none()
        {
            others.push(of.to_string());
            return Ok(None);
        }
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
        let names: Vec<String> = tags.map(|t| self.name(t)).collect::<Result<_, _>>()?;
        let children = std::iter::once(config).chain(layers).collect();
        Ok(Some(RawImage { names, manifest, children, digests: Vec::new(), tag: None }))
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

/// Returns the labels that protect a manifest's blobs from the runtime's garbage collection.
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

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
