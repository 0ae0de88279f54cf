//! The published definitions of a release: the cache of Go modules, or a source tree of Kubernetes, which has the same
//! files at other paths, and more.
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use anyhow::{Context, Result, bail, ensure};

/// The directory of published modules in a source tree.
const STAGING: &str = "staging/src/k8s.io";

/// A release of Kubernetes 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The second number of its version.
    pub minor: u16,
    /// The third number of its version.
    pub patch: u16,
}

impl Release {
    /// Parses `1.MINOR.PATCH`, with or without a leading `v`.
    pub fn parse(text: &str) -> Result<Self> {
        let numbers: Vec<&str> = text.strip_prefix('v').unwrap_or(text).split('.').collect();
        let ["1", minor, patch] = numbers[..] else { bail!("{text:?} is no release of the form 1.MINOR.PATCH") };
        Ok(Self { minor: minor.parse().context("minor")?, patch: patch.parse().context("patch")? })
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}.{}", self.minor, self.patch)
    }
}

/// The definitions of one release.
pub struct Sources {
    root: PathBuf,
    /// The release that they define.
    pub release: Release,
}

impl Sources {
    /// Opens the definitions in a directory, which must be those of the release.
    pub fn open(root: &Path, release: Release) -> Result<Self> {
        let sources = Self { root: root.to_owned(), release };
        let of = sources.read(&format!("{STAGING}/component-base/version/base.go"))?;
        let wanted = format!("DefaultKubeBinaryVersion = \"1.{}\"", release.minor);
        ensure!(of.contains(&wanted), "{}: not of {release}", root.display());
        Ok(sources)
    }

    /// Reports whether a directory has definitions of the release, complete or not.
    #[cfg(test)]
    pub fn are_in(root: &Path, release: Release) -> bool {
        Self { root: root.to_owned(), release }.module("api").is_dir()
    }

    /// Reports whether it is a source tree, which has files that no module has.
    pub fn is_tree(&self) -> bool {
        self.root.join(STAGING).is_dir()
    }

    /// Returns a file or directory, by its path in the source tree. Modules only have what is below `staging`.
    pub fn place(&self, path: &str) -> PathBuf {
        if self.is_tree() {
            return self.root.join(path);
        }
        let modules = self.root.join("k8s.io");
        let Release { minor, patch } = self.release;
        match path.strip_prefix(STAGING).and_then(|rest| rest.strip_prefix('/')) {
            Some(rest) => {
                let (module, rest) = rest.split_once('/').unwrap_or((rest, ""));
                let dir = modules.join(format!("{module}@v0.{minor}.{patch}"));
                if rest.is_empty() { dir } else { dir.join(rest) }
            }
            None => self.root.join(path),
        }
    }

    /// Returns the directory of a published module.
    pub fn module(&self, name: &str) -> PathBuf {
        self.place(&format!("{STAGING}/{name}"))
    }

    /// Reads a file, by its path in the source tree.
    pub fn read(&self, path: &str) -> Result<String> {
        let place = self.place(path);
        fs::read_to_string(&place).with_context(|| place.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_the_source_tree_leads_into_modules() {
        let release = Release::parse("v1.37.1").expect("a release");
        let sources = Sources { root: PathBuf::from("/nowhere"), release };
        for (path, want) in [
            ("staging/src/k8s.io/api/core/v1", "/nowhere/k8s.io/api@v0.37.1/core/v1"),
            ("staging/src/k8s.io/api", "/nowhere/k8s.io/api@v0.37.1"),
        ] {
            assert_eq!(sources.place(path), Path::new(want));
        }
        assert_eq!(sources.module("api"), Path::new("/nowhere/k8s.io/api@v0.37.1"));
        for wrong in ["1.37", "2.1.0", "1.a.0", "1.2.3.4"] {
            assert!(Release::parse(wrong).is_err(), "{wrong}");
        }
    }
}
