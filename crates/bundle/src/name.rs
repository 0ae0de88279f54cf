//! Names of entries.

use std::path::{Path, PathBuf};

use crate::error::BundleError;

/// The longest name in bytes; the archive's header has room for as many.
const NAME_BYTES_MAX: usize = 100;
/// The largest number of parts between slashes.
const PARTS_MAX: usize = 4;

/// Returns the path of an entry below a directory.
///
/// # Errors
/// [`BundleError::Name`]: the name is not made of one to four parts of letters, digits, `-`, `_` and `.`, each beginning with a
/// letter or digit.
pub(crate) fn path(dir: &Path, name: &str) -> Result<PathBuf, BundleError> {
    let is_valid = name.len() <= NAME_BYTES_MAX && name.split('/').count() <= PARTS_MAX && name.split('/').all(is_part);
    match is_valid {
        true => Ok(name.split('/').fold(dir.to_owned(), |at, part| at.join(part))),
        false => Err(BundleError::Name(name.chars().take(NAME_BYTES_MAX).collect())),
    }
}

fn is_part(part: &str) -> bool {
    part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && part.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && !part.ends_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leaves_the_directory() {
        let dir = Path::new("/d");
        assert_eq!(path(dir, "pki/ca.key").unwrap(), Path::new("/d/pki/ca.key"));
        let long = "x".repeat(101);
        for bad in [
            "",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            "./a",
            ".ssh",
            "a\\b",
            "C:x",
            "a b",
            "ü",
            "a/b/c/d/e",
            &long,
            "a.",
        ] {
            assert!(matches!(path(dir, bad), Err(BundleError::Name(_))), "{bad}");
        }
    }
}
