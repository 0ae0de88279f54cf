//! Lifecycle: the deprecation warnings of kinds in the served minor version.
use kelson_meta::version::MINOR_NUMBER;
use kelson_schema::lifecycle::{Lifecycle, lifecycle};

/// Kinds whose deprecation does not depend on a version; upstream's handlers warn about them. Group, version, kind, warning.
const UNVERSIONED_WARNINGS: [(&str, &str, &str, &str); 2] = [
    ("", "v1", "ComponentStatus", "v1 ComponentStatus is deprecated in v1.19+"),
    ("", "v1", "Endpoints", "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
];

/// The warning for a built-in kind, if it is deprecated.
pub fn warning(group: &str, version: &str, kind: &str) -> Option<String> {
    if let Some((.., text)) = UNVERSIONED_WARNINGS.iter().find(|row| (row.0, row.1, row.2) == (group, version, kind)) {
        return Some((*text).to_owned());
    }
    warning_text(lifecycle(group, version, kind)?, MINOR_NUMBER)
}

/// The warning for a kind in a minor version.
fn warning_text(life: &Lifecycle, minor: u16) -> Option<String> {
    if life.deprecated == 0 || minor < life.deprecated {
        return None;
    }
    let Lifecycle { group, version, kind, .. } = life;
    let slash = if group.is_empty() { "" } else { "/" };
    let mut text = format!("{group}{slash}{version} {kind} is deprecated in v1.{}+", life.deprecated);
    if life.removed > 0 {
        text.push_str(&format!(", unavailable in v1.{}+", life.removed));
    }
    if !life.instead.is_empty() {
        text.push_str(&format!("; use {}", life.instead));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_upstreams() {
        let beta = Lifecycle {
            group: "storage.k8s.io",
            version: "v1beta1",
            kind: "Thing",
            introduced: 31,
            deprecated: 34,
            removed: 37,
            instead: "storage.k8s.io/v1 Thing",
        };
        let want =
            "storage.k8s.io/v1beta1 Thing is deprecated in v1.34+, unavailable in v1.37+; use storage.k8s.io/v1 Thing";
        assert_eq!((warning_text(&beta, 33), warning_text(&beta, 34).as_deref()), (None, Some(want)));
        let stays = Lifecycle { group: "", version: "v1", removed: 0, instead: "", ..beta };
        assert_eq!(warning_text(&stays, 40).as_deref(), Some("v1 Thing is deprecated in v1.34+"));
        assert_eq!(warning_text(&Lifecycle { deprecated: 0, ..stays }, 40), None);
        let endpoints = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";
        assert_eq!(warning("", "v1", "Endpoints").as_deref(), Some(endpoints));
        assert_eq!(warning("", "v1", "Pod"), None);
    }

    #[test]
    fn removed_versions_are_not_served() {
        for served in kelson_schema::resource::resources() {
            let life = lifecycle(served.group, served.version, served.kind);
            let gone = life.is_some_and(|l| l.removed != 0 && l.removed <= MINOR_NUMBER);
            assert!(!gone, "{} {} is served, but removed", served.api_version(), served.kind);
        }
    }
}
