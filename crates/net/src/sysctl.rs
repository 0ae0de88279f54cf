//! Kernel parameters below `/proc/sys`.
#![allow(clippy::disallowed_methods, reason = "blocking: only kernel files; the caller is in a lane")]

use std::io;
use std::path::{Path, PathBuf};

/// The directory of the kernel's parameters. Those of `net` are of the calling thread's network namespace.
const DIR: &str = "/proc/sys";

/// Sets a parameter, named by its path below `/proc/sys`, such as `net/ipv4/ip_forward`. A parameter that has its value is not written, so
/// that a read-only `/proc/sys` with the right values works.
///
/// # Errors
/// The kernel has no such parameter, or it cannot be written.
pub fn ensure(key: &str, value: &str) -> io::Result<()> {
    ensure_in(Path::new(DIR), key, value)
}

fn ensure_in(dir: &Path, key: &str, value: &str) -> io::Result<()> {
    let file = dir.join(key);
    if std::fs::read_to_string(&file)?.trim() == value { Ok(()) } else { std::fs::write(file, value) }
}

/// Returns whether a parameter has this value.
pub(crate) fn has_value(key: &str, value: &str) -> bool {
    std::fs::read_to_string(PathBuf::from(DIR).join(key)).is_ok_and(|now| now.trim() == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_that_has_its_value_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ip_forward");
        std::fs::write(&file, "0\n").unwrap();
        ensure_in(dir.path(), "ip_forward", "0").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "0\n", "not written");
        ensure_in(dir.path(), "ip_forward", "1").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "1");
        assert!(ensure_in(dir.path(), "absent", "1").is_err(), "no file is created");
    }
}
