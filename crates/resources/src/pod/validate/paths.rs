//! Validates paths in volumes, mounts and profiles.
use crate::path::{Errors, Path};
use crate::rules::no_backsteps;

/// Validates a relative path without `..`.
pub fn descending(path: &str, p: &Path<'_>, e: &mut Errors) {
    if path.starts_with('/') {
        e.invalid(p, path, "must be a relative path");
    }
    no_backsteps(path, p, e);
}

/// Validates a relative path without `..` that does not begin with two dots: the writer of atomic volumes reserves such
/// names.
pub fn non_reserved(path: &str, p: &Path<'_>, e: &mut Errors) {
    descending(path, p, e);
    if path.starts_with("..") && !path.starts_with("../") && path != ".." {
        e.invalid(p, path, "must not start with '..'");
    }
}
