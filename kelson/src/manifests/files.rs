//! The manifest files below a directory. A file is read again when its size, its time or the target of its link
//! changes.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kelson_controllers::{ManifestError, ManifestFile, ManifestSet};
use sha2::{Digest as _, Sha256};

use super::documents::{FILE_BYTES_MAX, objects};

/// The maximum depth of directories.
const DEPTH_MAX: usize = 16;
/// The maximum number of files.
const FILES_MAX: usize = 2000;
/// The suffix of a file that makes its neighbour be skipped: `app.yaml.skip`.
const SKIP: &str = ".skip";

/// The state of a file when it was read; a difference means that it changed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    real: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
}

/// The manifest files below a directory, cached so that only changed ones are read again.
#[derive(Debug, Default)]
pub struct ManifestDir {
    root: PathBuf,
    prunes: bool,
    read: BTreeMap<String, (Stamp, ManifestFile)>,
}

/// The result of a scan.
#[derive(Debug)]
pub struct Look {
    /// The current manifests.
    pub set: ManifestSet,
    /// The directories that were scanned.
    pub dirs: Vec<PathBuf>,
}

#[derive(Default)]
struct Walk {
    /// Files by their path below the root.
    files: BTreeMap<String, PathBuf>,
    skipped: BTreeSet<String>,
    dirs: Vec<PathBuf>,
    /// The real paths of directories, to detect cycles of links.
    real_dirs: BTreeSet<PathBuf>,
    /// The files that could not be read, with the reason.
    failed: BTreeMap<String, ManifestError>,
}

impl ManifestDir {
    /// Creates a scanner for `root`; with `prunes`, objects without the annotation are pruned.
    pub fn new(root: PathBuf, prunes: bool) -> Self {
        Self { root, prunes, read: BTreeMap::new() }
    }

    /// Scans all files.
    pub fn look(&mut self) -> Look {
        let mut walk = Walk::default();
        walk.dir(&self.root, "", 0);
        let mut files: Vec<ManifestFile> = Vec::new();
        let mut read = BTreeMap::new();
        for (name, path) in &walk.files {
            let (stamp, mut file) = match (stamp(path), self.read.remove(name)) {
                (Some(stamp), Some((before, file))) if stamp == before => (Some(stamp), file),
                (stamp, _) => (stamp, read_file(name, path)),
            };
            file.skipped = walk.skipped.contains(name);
            if let Some(stamp) = stamp {
                read.insert(name.clone(), (stamp, file.clone()));
            }
            files.push(file);
        }
        self.read = read;
        let complete = walk.failed.is_empty();
        for (name, why) in walk.failed {
            files.push(ManifestFile { name, digest: [0; 32], skipped: false, objects: Err(why) });
        }
        Look { set: ManifestSet { files, complete, prunes: self.prunes }, dirs: walk.dirs }
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let about = fs::metadata(path).ok()?;
    Some(Stamp { real: path.canonicalize().ok()?, bytes: about.len(), modified: about.modified().ok() })
}

fn read_file(name: &str, path: &Path) -> ManifestFile {
    let text = match fs::metadata(path) {
        Ok(about) if about.len() > FILE_BYTES_MAX as u64 => Err(ManifestError::TooLarge { max: FILE_BYTES_MAX }),
        Ok(_) => fs::read_to_string(path).map_err(ManifestError::from),
        Err(e) => Err(e.into()),
    };
    let digest = Sha256::digest(text.as_deref().unwrap_or_default()).into();
    ManifestFile { name: name.to_owned(), digest, skipped: false, objects: text.and_then(|text| objects(&text)) }
}

impl Walk {
    fn dir(&mut self, dir: &Path, below: &str, depth: usize) {
        let mut fail = |why: ManifestError| drop(self.failed.insert(format!("{below}/"), why));
        let (real, entries) = match (dir.canonicalize(), fs::read_dir(dir)) {
            (Ok(real), Ok(entries)) => (real, entries),
            (Err(e), _) | (_, Err(e)) => return fail(e.into()),
        };
        if depth > DEPTH_MAX {
            return fail(ManifestError::TooDeep { max: DEPTH_MAX });
        }
        if !self.real_dirs.insert(real) {
            return;
        }
        self.dirs.push(dir.to_owned());
        for entry in entries {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(e) => {
                    self.failed.insert(format!("{below}/"), e.into());
                    continue;
                }
            };
            let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|name| !name.starts_with('.'))
            else {
                continue;
            };
            let name = if below.is_empty() { name.to_owned() } else { format!("{below}/{name}") };
            if path.is_dir() {
                self.dir(&path, &name, depth + 1);
            } else if let Some(skipped) = name.strip_suffix(SKIP) {
                self.skipped.insert(skipped.to_owned());
            } else if [".yaml", ".yml", ".json"].iter().any(|ending| name.ends_with(ending)) {
                if self.files.len() >= FILES_MAX {
                    self.failed.insert(format!("{below}/"), ManifestError::TooManyFiles { max: FILES_MAX });
                    return;
                }
                self.files.insert(name, path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(name: &str) -> String {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n")
    }

    fn shown(set: &ManifestSet) -> Vec<String> {
        let file = |file: &ManifestFile| {
            let count = file.objects.as_ref().map_or_else(ToString::to_string, |objects| objects.len().to_string());
            format!("{}: {count}{}", file.name, if file.skipped { " skipped" } else { "" })
        };
        set.files.iter().map(file).collect()
    }

    #[test]
    fn manifests_of_all_directories_by_name() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("sub/deep")).unwrap();
        for (name, text) in [
            ("b.yaml", map("b")),
            ("a.yml", map("a")),
            ("sub/c.json", r#"{"apiVersion": "v1", "kind": "ConfigMap"}"#.to_owned()),
            ("sub/deep/d.yaml", "a: [".to_owned()),
            ("b.yaml.skip", String::new()),
            (".hidden.yaml", map("h")),
            ("README.md", "text".to_owned()),
        ] {
            fs::write(at(name), text).unwrap();
        }
        let mut dir = ManifestDir::new(root.path().to_owned(), false);
        let look = dir.look();
        let files = shown(&look.set);
        assert_eq!(files[..3], ["a.yml: 1", "b.yaml: 1 skipped", "sub/c.json: 1"]);
        assert!(files[3].starts_with("sub/deep/d.yaml: yaml: "), "{files:?}");
        assert_eq!((files.len(), look.dirs.len(), look.set.complete), (4, 3, true));
        assert_eq!(dir.look().set, look.set, "nothing changed");
        fs::write(at("a.yml"), format!("{}---\n{}", map("a"), map("a2"))).unwrap();
        fs::remove_file(at("b.yaml.skip")).unwrap();
        assert_eq!(shown(&dir.look().set)[..2], ["a.yml: 2", "b.yaml: 1"]);
    }

    #[test]
    fn a_missing_directory_is_not_an_empty_set() {
        let root = tempfile::tempdir().unwrap();
        let look = ManifestDir::new(root.path().join("none"), true).look();
        assert!(!look.set.complete && look.set.prunes);
        assert!(shown(&look.set)[0].starts_with("/: "), "{:?}", look.set);
    }
}
