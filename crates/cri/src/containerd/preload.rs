//! Imports the archives in `DIR/images` at startup. Unchanged archives that were imported before are skipped, so that a
//! start does not read gigabytes again.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kelson_tasks::FILES;
use serde::{Deserialize, Serialize};

use super::{ContainerdConfig, Importer};
use crate::{CriClient, Limits, Runtime as _};

/// The suffixes of image archives.
const ENDINGS: [&str; 7] = [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.xz", ".txz"];

/// The record of an imported archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Loaded {
    size: u64,
    modified_ns: u128,
    images: Vec<String>,
}

/// Imports new archives; returns the names of all images in the archives. An archive that cannot be imported is logged
/// and does not stop the node.
pub(crate) async fn load(config: &ContainerdConfig, importer: &Importer) -> Vec<String> {
    let images = config.data_dir.join("images");
    load_from(&images, config.dir().join("loaded-images.json"), importer).await
}

/// Imports the archives of the data directory into a containerd that this program did not start; returns the names of
/// their images. Other runtimes do not support that, which is logged if there are archives.
pub async fn load_into(endpoint: &str, data_dir: &Path) -> Vec<String> {
    let images = data_dir.join("images");
    let dir = images.clone();
    if FILES.run(move || archives(&dir)).await.unwrap_or_default().is_empty() {
        return Vec::new();
    }
    let name = match CriClient::new(endpoint, Limits::default()) {
        Ok(client) => client.version().await.map(|v| v.runtime_name),
        Err(e) => Err(e),
    };
    let skipped = |why: String| tracing::warn!(dir = %images.display(), why, "image archives are not loaded");
    match (name, Importer::new(endpoint)) {
        (Ok(name), Ok(importer)) if name == "containerd" => {
            load_from(&images, data_dir.join("loaded-images.json"), &importer).await
        }
        (Ok(name), Ok(_)) => {
            skipped(format!(
                "the container runtime {name} does not support image archives; load them with its own tools"
            ));
            Vec::new()
        }
        (Err(e), _) | (_, Err(e)) => {
            skipped(e.to_string());
            Vec::new()
        }
    }
}

async fn load_from(images: &Path, memory: PathBuf, importer: &Importer) -> Vec<String> {
    let (remembered, dir) = (memory.clone(), images.to_owned());
    let (before, found) = FILES.run(move || (recall(&remembered), archives(&dir))).await.unwrap_or_default();
    let dir = images.to_owned();
    for file in FILES.run(move || strangers(&dir)).await.unwrap_or_default() {
        let endings = ENDINGS.join(", ");
        tracing::warn!(file = %file.display(), endings, "file name is not that of an image archive; not loading it");
    }
    let mut now = BTreeMap::new();
    for (path, name, size, modified_ns) in found {
        if let Some(known) = before.get(&name)
            && (known.size, known.modified_ns) == (size, modified_ns)
            && has_all(importer, &known.images).await
        {
            now.insert(name, known.clone());
            continue;
        }
        match importer.import(&path).await {
            Ok(images) => {
                let images: Vec<String> = images.into_iter().map(|i| i.name).collect();
                tracing::info!(archive = %path.display(), ?images, "loaded images");
                now.insert(name, Loaded { size, modified_ns, images });
            }
            Err(e) => tracing::error!(error = %e, "loading an image archive failed; skipping it"),
        }
    }
    if now != before {
        // Only saves work: without it the next start imports again.
        let (file, what) = (memory.clone(), now.clone());
        let save =
            move || serde_json::to_vec(&what).map_err(std::io::Error::from).and_then(|b| std::fs::write(file, b));
        if let Ok(Err(e)) = FILES.run(save).await {
            tracing::warn!(error = %e, file = %memory.display(), "writing the list of loaded images failed");
        }
    }
    now.into_values().flat_map(|loaded| loaded.images).collect()
}

async fn has_all(importer: &Importer, images: &[String]) -> bool {
    for image in images {
        // The image may have been removed since.
        if !importer.has(image).await.unwrap_or(false) {
            return false;
        }
    }
    true
}

fn identity(path: &Path) -> Option<(String, u64, u128)> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    let meta = std::fs::metadata(path).ok()?;
    let modified = meta.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some((name, meta.len(), modified.as_nanos()))
}

/// Reads the records of earlier starts; none when they cannot be read.
fn recall(memory: &Path) -> BTreeMap<String, Loaded> {
    std::fs::read(memory).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

fn files(dir: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).filter(|p| p.is_file())
}

fn is_archive(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Returns files that are ignored, except hidden ones and those that are still being written.
fn strangers(dir: &Path) -> Vec<PathBuf> {
    let is_passing = |p: &Path| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with('.') || name.ends_with(".tmp") || name.ends_with(".part")
    };
    files(dir).filter(|p| !is_archive(p) && !is_passing(p)).collect()
}

/// Returns the archives of a directory, in order: path, name, size in bytes, and time of the last change.
fn archives(dir: &Path) -> Vec<(PathBuf, String, u64, u128)> {
    let mut paths: Vec<PathBuf> = files(dir).filter(|p| is_archive(p)).collect();
    paths.sort();
    let identified = |path: PathBuf| identity(&path).map(|(name, size, modified_ns)| (path, name, size, modified_ns));
    paths.into_iter().filter_map(identified).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_found_by_their_endings() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.tar", "a.tar.gz", "c.tgz", "d.txt", "e.tar.tmp", "f.tar.zst", "g.tar.xz", "h.tar.bz2", ".i"] {
            std::fs::write(dir.path().join(name), b"").unwrap();
        }
        let found: Vec<_> = archives(dir.path()).into_iter().map(|(_, name, ..)| name).collect();
        assert_eq!(found, ["a.tar.gz", "b.tar", "c.tgz", "f.tar.zst", "g.tar.xz"]);
        let mut reported = strangers(dir.path());
        reported.sort();
        assert_eq!(reported, ["d.txt", "h.tar.bz2"].map(|name| dir.path().join(name)), "what is passed over is told");
        assert!(archives(&dir.path().join("none")).is_empty());
    }
}
