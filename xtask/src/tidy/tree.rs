//! The files of the repository, read once.
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::source;

/// Directories of build output and of git.
const SKIPPED: &[&str] = &[".git", ".cache", "target"];

/// A Rust source file.
#[derive(Debug)]
pub struct File {
    /// The path from the repository's root, with `/`.
    pub path: String,
    /// The folder in `crates/`, or the top folder: `apiserver`, `kelson`, `xtask`.
    pub krate: String,
    /// The whole text.
    pub text: String,
    /// The same lines without comments and string contents.
    pub code: String,
    /// The value of `code` without test modules.
    pub own: String,
}

/// The repository's files for the rules.
#[derive(Debug)]
pub struct Tree {
    pub root: PathBuf,
    /// The Rust files of the tree.
    pub files: Vec<File>,
    /// The paths of all other files.
    pub others: Vec<String>,
}

impl Tree {
    /// Reads the repository in which this program was built.
    pub fn read() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the repository's root")?.to_owned();
        let mut tree = Self { root: root.clone(), files: Vec::new(), others: Vec::new() };
        tree.walk(&root)?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        tree.others.sort();
        Ok(tree)
    }

    fn walk(&mut self, dir: &Path) -> Result<()> {
        for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
            let path = entry?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            if SKIPPED.contains(&name) || path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                self.walk(&path)?;
                continue;
            }
            let relative = path.strip_prefix(&self.root)?.to_str().context("a path that is not UTF-8")?.to_owned();
            if name.ends_with(".rs") {
                let text = fs::read_to_string(&path).with_context(|| relative.clone())?;
                let code = source::without_comments(&text);
                let own = source::without_tests(&code);
                self.files.push(File { krate: crate_of(&relative).to_owned(), path: relative, text, code, own });
            } else {
                self.others.push(relative);
            }
        }
        Ok(())
    }

    /// Returns the text of a file that is not Rust.
    pub fn other(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.root.join(path)).with_context(|| path.to_owned())
    }

    /// Returns the files with hand-written code: without generated tables, tests and benchmarks.
    pub fn code(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|f| !f.is_generated() && !f.is_test())
    }

    /// Returns the names of all crates.
    pub fn crates(&self) -> BTreeSet<&str> {
        self.files.iter().map(|f| f.krate.as_str()).collect()
    }

    /// Returns every manifest except the workspace's.
    pub fn manifests(&self) -> impl Iterator<Item = &str> {
        self.others.iter().map(String::as_str).filter(|p| p.ends_with("/Cargo.toml"))
    }
}

impl File {
    /// Reports whether the file is generated.
    pub fn is_generated(&self) -> bool {
        self.path.contains("/generated/") || self.path.ends_with("/generated.rs")
    }

    /// Reports whether it is compiled for tests or benchmarks only. The name of a crate under `crates` does not matter.
    pub fn is_test(&self) -> bool {
        let is = |part: &str| matches!(part, "tests" | "bench" | "blackbox" | "tests.rs" | "testing.rs" | "testing");
        let within = self
            .path
            .strip_prefix("crates/")
            .and_then(|path| path.split_once('/'))
            .map_or(&*self.path, |(_, rest)| rest);
        within.split('/').any(is)
    }
}

/// Returns the crate that a path belongs to.
pub fn crate_of(path: &str) -> &str {
    path.strip_prefix("crates/").unwrap_or(path).split('/').next().unwrap_or_default()
}
