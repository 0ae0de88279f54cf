//! `/version`: which Kubernetes this is. The facts are `kelson_meta::version`'s; here is the form clients read.
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
