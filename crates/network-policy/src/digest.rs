//! Names of chains, sets and counters: readable names would exceed the kernel's limit and may contain any label.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Returns sixteen hex digits of a string's digest: a collision would merge two sets, so more than the proxy's eight.
pub(crate) fn short_digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(8).fold(String::with_capacity(16), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
