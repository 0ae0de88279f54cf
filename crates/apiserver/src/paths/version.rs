//! `/version`: the version of Kubernetes. `kelson_meta::version` has the values.
use kelson_meta::version::{GIT_VERSION, MAJOR, MINOR, PREVIOUS_MINOR, build, platform};
use serde_json::{Value, json};

/// `version.Info`.
pub fn info() -> Value {
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "emulationMajor": MAJOR,
        "emulationMinor": MINOR,
        "minCompatibilityMajor": MAJOR,
        "minCompatibilityMinor": PREVIOUS_MINOR,
        "gitVersion": GIT_VERSION,
        "gitCommit": build().commit,
        "gitTreeState": "clean",
        "buildDate": build().date,
        "goVersion": "none",
        "compiler": "rustc",
        "platform": platform(),
    })
}
