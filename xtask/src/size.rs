//! `cargo xtask size FILE`: compares the size of the release binary with a limit that may only fall. `make size` builds
//! the binary and runs this.
use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::tidy::size_limit;

/// Compares the size of the binary at `path` with the limit `binary.kilobytes`.
pub fn run(path: &str) -> Result<()> {
    let bytes = fs::metadata(path).with_context(|| format!("{path}: make build"))?.len();
    let report = check(bytes, size_limit()?)?;
    println!("{path}: {report}");
    Ok(())
}

fn check(bytes: u64, limit: usize) -> Result<String> {
    let kilobytes = usize::try_from(bytes.div_ceil(1000))?;
    ensure!(kilobytes <= limit, "the binary has {kilobytes} kB, where {limit} are allowed (binary.kilobytes)");
    Ok(format!("{kilobytes} kB, of {limit} allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_over_its_limit_is_an_error() {
        assert_eq!(check(49_999_001, 50_000).unwrap(), "50000 kB, of 50000 allowed");
        assert!(check(50_000_001, 50_000).is_err());
    }
}
