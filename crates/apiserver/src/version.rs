//! `/version`: which Kubernetes this is. The facts are `kelson_meta::version`'s; here is the form clients read.
use kelson_meta::version::{BUILD_DATE, GIT_COMMIT, GIT_VERSION, MAJOR, MINOR, platform};
use serde_json::{Value, json};

/// `version.Info`.
pub fn info() -> Value {
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "emulationMajor": MAJOR,
        "emulationMinor": MINOR,
        "minCompatibilityMajor": MAJOR,
        "minCompatibilityMinor": "35",
        "gitVersion": GIT_VERSION,
        "gitCommit": GIT_COMMIT,
        "gitTreeState": "clean",
        "buildDate": BUILD_DATE,
        "goVersion": "none",
        "compiler": "rustc",
        "platform": platform(),
    })
}
