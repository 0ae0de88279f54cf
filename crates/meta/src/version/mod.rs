//! The version that every component reports: Kubernetes' version, so that version skew checks of clients work, with
//! Kelson's version as build metadata.
mod generated;

use std::sync::OnceLock;

pub use generated::{GIT_VERSION, MINOR, MINOR_NUMBER, PREVIOUS_MINOR, SHORT};

/// The `major` of `/version`.
pub const MAJOR: &str = "1";
/// The version of Kelson.
pub const KELSON_VERSION: &str = env!("CARGO_PKG_VERSION");
/// The identity of this build. Only the binary knows it: a library that read it from the environment would be
/// recompiled at every commit, with everything that depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    /// The `gitCommit` of `/version`.
    pub commit: &'static str,
    /// The `buildDate` of `/version`.
    pub date: &'static str,
}

static BUILD: OnceLock<Build> = OnceLock::new();

/// Sets the identity of the build. Only the first call has an effect.
pub fn set_build(build: Build) {
    let _ = BUILD.set(build);
}

/// Returns the identity of the build. Before [`set_build`], it is unknown, with the date of the Unix epoch.
pub fn build() -> Build {
    *BUILD.get().unwrap_or(&Build { commit: "unknown", date: "1970-01-01T00:00:00Z" })
}

/// Returns the `platform` of `/version` in Go's form, such as `linux/arm64`.
pub fn platform() -> String {
    format!("{}/{}", std::env::consts::OS, go_arch())
}

/// Returns the machine's architecture in Go's form: `amd64`, `arm64` and others.
pub fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}
