//! Manifests that a controller keeps applied, as the program reads them from files.
use std::sync::Arc;

use serde_json::Value;

/// All manifests, as they were at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManifestSet {
    /// The files, by name.
    pub files: Vec<ManifestFile>,
    /// Whether every file and directory was read: where not, nothing is deleted.
    pub complete: bool,
    /// Whether objects are pruned whose annotation says nothing of it.
    pub prunes: bool,
}

/// One file of manifests.
#[derive(Clone, Debug, PartialEq)]
pub struct ManifestFile {
    /// Its path below the directory of manifests, with `/`.
    pub name: String,
    /// Changes with its content.
    pub digest: [u8; 32],
    /// Whether it is left alone: nothing of it is applied or deleted.
    pub skipped: bool,
    /// Its objects in their order, or why they cannot be read.
    pub objects: Result<Vec<Arc<Value>>, String>,
}
