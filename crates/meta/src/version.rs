//! The version every component reports: Kubernetes' own, so that clients' skew checks hold, with Kelson's as metadata.

/// `major` of `/version`.
pub const MAJOR: &str = "1";
/// `minor` of `/version`.
pub const MINOR: &str = "36";
/// `gitVersion` of `/version` and `kubeletVersion` of a Node.
pub const GIT_VERSION: &str = concat!("v1.36.2+kelson.", env!("CARGO_PKG_VERSION"));
/// Kelson's own version.
pub const KELSON_VERSION: &str = env!("CARGO_PKG_VERSION");
/// `gitCommit` of `/version`; `unknown` where the build did not say (`KELSON_COMMIT`).
pub const GIT_COMMIT: &str = match option_env!("KELSON_COMMIT") {
    Some(c) => c,
    None => "unknown",
};

/// `buildDate` of `/version`; the epoch where the build did not say (`KELSON_BUILD_DATE`).
pub const BUILD_DATE: &str = match option_env!("KELSON_BUILD_DATE") {
    Some(d) => d,
    None => "1970-01-01T00:00:00Z",
};

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
