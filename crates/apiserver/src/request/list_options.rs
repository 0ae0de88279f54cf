//! The rules of `ListOptions` that hold between parameters (apimachinery `pkg/apis/meta/internalversion/validation`): all
//! that is wrong is told at once.
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Status};

use kelson_meta::url::Query;

const NOT_OLDER_THAN: &str = "NotOlderThan";
const EXACT: &str = "Exact";

/// Checks the parameters of a list, or of a watch.
///
/// # Errors
/// 422 as upstream.
pub fn check(query: &Query, watch: bool) -> Result<(), Status> {
    let mut errors = FieldErrors::new();
    if watch {
        of_watch(query, &mut errors)
    } else {
        of_list(query, &mut errors)
    }
    if errors.is_empty() {
        return Ok(());
    }
    let kind = GroupKind { group: "meta.k8s.io".into(), kind: "ListOptions".into() };
    Err(Status::invalid(&kind, "", &errors))
}

/// Whether the parameter says anything; an empty one is as good as none.
fn initial_events(query: &Query) -> bool {
    query.get("sendInitialEvents").is_some_and(|v| !v.is_empty())
}

fn of_list(query: &Query, errors: &mut FieldErrors) {
    let path = FieldPath::new("resourceVersionMatch");
    let (matching, version) = (query.text("resourceVersionMatch"), query.text("resourceVersion"));
    if !matching.is_empty() {
        if version.is_empty() {
            errors.forbidden(&path, "resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if !query.text("continue").is_empty() {
            errors.forbidden(&path, "resourceVersionMatch is forbidden when continue is provided");
        }
        if ![EXACT, NOT_OLDER_THAN].contains(&matching) {
            errors.not_supported(&path, matching, &[EXACT, NOT_OLDER_THAN, ""]);
        }
        if matching == EXACT && version == "0" {
            errors.forbidden(&path, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
    }
    if initial_events(query) {
        errors.forbidden(&FieldPath::new("sendInitialEvents"), "sendInitialEvents is forbidden for list");
    }
}

fn of_watch(query: &Query, errors: &mut FieldErrors) {
    let path = FieldPath::new("resourceVersionMatch");
    let matching = query.text("resourceVersionMatch");
    let initial = initial_events(query);
    if initial && matching != NOT_OLDER_THAN {
        errors.forbidden(&path, format!("sendInitialEvents requires setting resourceVersionMatch to {NOT_OLDER_THAN}"));
    }
    if matching.is_empty() {
        return;
    }
    if !initial {
        errors.forbidden(&path, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
    }
    if matching != NOT_OLDER_THAN {
        errors.not_supported(&path, matching, &[NOT_OLDER_THAN]);
    }
    if !query.text("continue").is_empty() {
        errors.forbidden(&path, "resourceVersionMatch is forbidden when continue is provided");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes(query: &str, watch: bool) -> String {
        let Err(status) = check(&Query::parse(Some(query)), watch) else { return String::new() };
        assert_eq!(status.code, 422);
        let causes = status.details.map(|d| d.causes).unwrap_or_default();
        causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn lists() {
        for (query, expected) in [
            ("resourceVersion=5&resourceVersionMatch=Exact", ""),
            ("resourceVersion=0&resourceVersionMatch=NotOlderThan", ""),
            ("sendInitialEvents=", ""),
            (
                "resourceVersionMatch=Exact",
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            ),
            (
                "resourceVersion=0&resourceVersionMatch=Exact&continue=x",
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided; \
                 resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ),
            (
                "resourceVersion=1&resourceVersionMatch=Odd&sendInitialEvents=false",
                "resourceVersionMatch: Unsupported value: \"Odd\": supported values: \"Exact\", \"NotOlderThan\", \"\"; \
                 sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
            ),
        ] {
            assert_eq!(causes(query, false), expected, "{query}");
        }
    }

    #[test]
    fn watches() {
        for (query, expected) in [
            ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", ""),
            (
                "sendInitialEvents=false",
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ),
            (
                "resourceVersionMatch=Exact",
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is \
                 provided; resourceVersionMatch: Unsupported value: \"Exact\": supported values: \"NotOlderThan\"",
            ),
            (
                "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=x",
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided",
            ),
        ] {
            assert_eq!(causes(query, true), expected, "{query}");
        }
    }
}
