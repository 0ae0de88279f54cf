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
    pub objects: Result<Vec<Arc<Value>>, ManifestError>,
}

/// Why a file of manifests, or a directory of them, cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The system cannot read the file or directory.
    #[error("{message}")]
    Io {
        /// The kind of the system's error.
        kind: std::io::ErrorKind,
        /// The system's words for it.
        message: String,
    },
    /// The file is too large.
    #[error("larger than {max} bytes")]
    TooLarge {
        /// The limit in bytes.
        max: usize,
    },
    /// The directory has too many files.
    #[error("more than {max} files")]
    TooManyFiles {
        /// The limit of all directories together.
        max: usize,
    },
    /// Directories nest too deep.
    #[error("more than {max} directories below each other")]
    TooDeep {
        /// The largest number of directories below each other that is read.
        max: usize,
    },
    /// The document is neither YAML nor JSON. The decoder's error names the line.
    #[error("{0}")]
    Syntax(String),
    /// A key is in a map twice. The decoder's finding names the line.
    #[error("{0}")]
    DuplicateKey(String),
    /// A document is no object.
    #[error("document at line {line}: {fault}")]
    Document {
        /// The line at which the document begins, from 1.
        line: usize,
        /// The error in the document.
        fault: DocumentError,
    },
}

impl From<std::io::Error> for ManifestError {
    fn from(error: std::io::Error) -> Self {
        Self::Io { kind: error.kind(), message: error.to_string() }
    }
}

/// Why a document of a file is no object of the API.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// It is a scalar or a list.
    #[error("expected an object")]
    NoObject,
    /// It lacks a field that every object has.
    #[error(transparent)]
    MissingField(#[from] MissingField),
}

/// A field that every object has is missing, or is no string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}: expected a string")]
pub struct MissingField(pub &'static str);
