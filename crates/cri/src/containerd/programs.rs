//! Finds programs on this machine, and formats their paths for containerd's files.
#![allow(clippy::disallowed_methods, reason = "blocking: in the lane for files")]

use std::path::{Path, PathBuf};

use super::ContainerdError;

/// Formats a TOML basic string: JSON's escapes are a subset of TOML's.
pub(crate) fn quote(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy()).to_string()
}

/// Returns the program's path, from PATH and from Debian's directories for root's programs.
pub(crate) fn find_program(program: &'static str, package: &'static str) -> Result<PathBuf, ContainerdError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin"].map(PathBuf::from);
    let mut candidates = std::env::split_paths(&path).chain(usual).map(|dir| dir.join(program));
    candidates.find(|p| is_executable(p)).ok_or(ContainerdError::Missing { program, package })
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_remedy() {
        let err = find_program("kelson-no-such-program", "containerd").expect_err("missing");
        assert_eq!(
            err.to_string(),
            "kelson-no-such-program not found in PATH; install containerd or give --container-runtime-endpoint"
        );
    }
}
