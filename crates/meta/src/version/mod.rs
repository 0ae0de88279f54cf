//! The version every component reports: Kubernetes' own, so that clients' skew checks hold, with Kelson's as metadata.
mod generated;

use std::sync::OnceLock;

pub use generated::{GIT_VERSION, MINOR, MINOR_NUMBER, PREVIOUS_MINOR, SHORT};

/// `major` of `/version`.
pub const MAJOR: &str = "1";
/// Kelson's own version.
pub const KELSON_VERSION: &str = env!("CARGO_PKG_VERSION");
/// Which build this is. Only the binary knows: a library that read it from the environment would be built anew, with
/// everything above it, at every commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    /// `gitCommit` of `/version`.
    pub commit: &'static str,
    /// `buildDate` of `/version`.
    pub date: &'static str,
}

static BUILD: OnceLock<Build> = OnceLock::new();

/// Says which build this is; the first word stands.
pub fn set_build(build: Build) {
    let _ = BUILD.set(build);
}

/// Which build this is; unknown, of the epoch, where nobody said.
pub fn build() -> Build {
    *BUILD.get().unwrap_or(&Build { commit: "unknown", date: "1970-01-01T00:00:00Z" })
}

/// `platform` of `/version`, in Go's words, e.g. `linux/arm64`.
pub fn platform() -> String {
    format!("{}/{}", std::env::consts::OS, go_arch())
}

/// The machine's architecture in Go's words: `amd64`, `arm64` …
pub fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}
