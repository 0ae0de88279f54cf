//! Lifecycle: what each request for a kind is told that is deprecated in the minor version that is served.
use kelson_meta::version::MINOR_NUMBER;
use kelson_schema::lifecycle::{Lifecycle, lifecycle};

/// Kinds whose handlers say it themselves, upstream too: their version is not deprecated, they are. Group, version, kind, text.
const OF_HANDLERS: [(&str, &str, &str, &str); 2] = [
    ("", "v1", "ComponentStatus", "v1 ComponentStatus is deprecated in v1.19+"),
    ("", "v1", "Endpoints", "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
];

/// The warning of a built-in kind, if it is deprecated.
pub fn warning(group: &str, version: &str, kind: &str) -> Option<String> {
    if let Some((.., text)) = OF_HANDLERS.iter().find(|row| (row.0, row.1, row.2) == (group, version, kind)) {
        return Some((*text).to_owned());
    }
    words(lifecycle(group, version, kind)?, MINOR_NUMBER)
}

/// What is said of a kind in a minor version.
fn words(life: &Lifecycle, minor: u16) -> Option<String> {
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
    fn words_are_upstreams() {
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
        assert_eq!((words(&beta, 33), words(&beta, 34).as_deref()), (None, Some(want)));
        let stays = Lifecycle { group: "", version: "v1", removed: 0, instead: "", ..beta };
        assert_eq!(words(&stays, 40).as_deref(), Some("v1 Thing is deprecated in v1.34+"));
        assert_eq!(words(&Lifecycle { deprecated: 0, ..stays }, 40), None);
        let told = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";
        assert_eq!(warning("", "v1", "Endpoints").as_deref(), Some(told));
        assert_eq!(warning("", "v1", "Pod"), None);
    }

    #[test]
    fn nothing_is_served_that_is_gone() {
        for served in kelson_schema::resource::resources() {
            let life = lifecycle(served.group, served.version, served.kind);
            let gone = life.is_some_and(|l| l.removed != 0 && l.removed <= MINOR_NUMBER);
            assert!(!gone, "{} {} is served and gone", served.api_version(), served.kind);
        }
    }
}
