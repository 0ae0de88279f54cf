//! Loads `DIR/images/*.tar*` at start. What was loaded before and has not changed is left alone, so that a start does
//! not read gigabytes again.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kelson_tasks::FILES;
use serde::{Deserialize, Serialize};

use super::{ContainerdConfig, Importer};

/// What is remembered of one archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Loaded {
    size: u64,
    modified_ns: u128,
    images: Vec<String>,
}

/// Imports what is new; gives the names of all images the archives hold. An archive that cannot be imported is logged
/// and does not stop the node.
pub(crate) async fn load(config: &ContainerdConfig, importer: &Importer) -> Vec<String> {
    let memory = config.dir().join("loaded-images.json");
    let (remembered, dir) = (memory.clone(), config.data_dir.join("images"));
    let (before, found) = FILES.run(move || (recall(&remembered), archives(&dir))).await.unwrap_or_default();
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
                tracing::info!(archive = %path.display(), ?images, "images loaded");
                now.insert(name, Loaded { size, modified_ns, images });
            }
            Err(e) => tracing::error!(error = %e, "image archive skipped"),
        }
    }
    if now != before {
        // Only saves work: without it the next start imports again.
        let (file, what) = (memory.clone(), now.clone());
        let save =
            move || serde_json::to_vec(&what).map_err(std::io::Error::from).and_then(|b| std::fs::write(file, b));
        if let Ok(Err(e)) = FILES.run(save).await {
            tracing::warn!(error = %e, file = %memory.display(), "remember loaded images");
        }
    }
    now.into_values().flat_map(|loaded| loaded.images).collect()
}

async fn has_all(importer: &Importer, images: &[String]) -> bool {
    for image in images {
        // Somebody may have removed it since.
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

/// What was loaded by earlier starts; nothing when that cannot be read.
fn recall(memory: &Path) -> BTreeMap<String, Loaded> {
    std::fs::read(memory).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// `*.tar`, `*.tar.gz` and `*.tgz` of a directory, in order: path, name, size in bytes, and when it was last changed.
fn archives(dir: &Path) -> Vec<(PathBuf, String, u64, u128)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let fits = |p: &PathBuf| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        [".tar", ".tar.gz", ".tgz"].iter().any(|ending| name.ends_with(ending))
    };
    let mut paths: Vec<PathBuf> = entries.filter(fits).collect();
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
        for name in ["b.tar", "a.tar.gz", "c.tgz", "d.txt", "e.tar.tmp"] {
            std::fs::write(dir.path().join(name), b"").unwrap();
        }
        let found: Vec<_> = archives(dir.path()).into_iter().map(|(_, name, ..)| name).collect();
        assert_eq!(found, ["a.tar.gz", "b.tar", "c.tgz"]);
        assert!(archives(&dir.path().join("none")).is_empty());
    }
}
