//! Rules between the parameters of `ListOptions` (apimachinery `pkg/apis/meta/internalversion/validation`). All errors are reported
//! at once.
use kelson_meta::{FieldErrors, FieldPath, GroupKind, Status};

use kelson_meta::url::Query;

const NOT_OLDER_THAN: &str = "NotOlderThan";
const EXACT: &str = "Exact";

/// The operation whose parameters are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOperation {
    /// The request is a list.
    List,
    /// A watch. `may_list`: it may begin with the current objects (feature gate `WatchList`).
    Watch { may_list: bool },
}

/// Checks the parameters of a list or a watch.
///
/// # Errors
/// 400 for a number that does not parse, 422 as upstream.
pub fn check(query: &Query, of: ReadOperation) -> Result<(), Status> {
    query.integer("timeoutSeconds")?;
    query.integer("limit")?;
    let mut errors = FieldErrors::new();
    match of {
        ReadOperation::List => check_list(query, &mut errors),
        ReadOperation::Watch { may_list } => check_watch(query, may_list, &mut errors),
    }
    if errors.is_empty() {
        return Ok(());
    }
    let kind = GroupKind { group: "meta.k8s.io".into(), kind: "ListOptions".into() };
    Err(Status::invalid(&kind, "", &errors))
}

/// Whether `sendInitialEvents` is set. An empty value counts as unset.
fn initial_events(query: &Query) -> bool {
    query.get("sendInitialEvents").is_some_and(|v| !v.is_empty())
}

fn check_list(query: &Query, errors: &mut FieldErrors) {
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

fn check_watch(query: &Query, may_list: bool, errors: &mut FieldErrors) {
    let path = FieldPath::new("resourceVersionMatch");
    let matching = query.text("resourceVersionMatch");
    let initial = initial_events(query);
    if initial && matching != NOT_OLDER_THAN {
        errors.forbidden(&path, format!("sendInitialEvents requires setting resourceVersionMatch to {NOT_OLDER_THAN}"));
    }
    if initial && !may_list {
        let why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
        errors.forbidden(&FieldPath::new("sendInitialEvents"), why);
    }
    // Without a version, a watch begins with the current objects, as if it had asked for them.
    let begins = may_list && !initial && matching.is_empty() && matches!(query.text("resourceVersion"), "" | "0");
    if begins && !query.text("continue").is_empty() {
        errors.forbidden(&path, "resourceVersionMatch is forbidden when continue is provided");
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

    fn causes(query: &str, of: ReadOperation) -> String {
        let Err(status) = check(&Query::parse(Some(query)), of) else { return String::new() };
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
            assert_eq!(causes(query, ReadOperation::List), expected, "{query}");
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
            ("resourceVersion=5&continue=x", ""),
            (
                "continue=x",
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided",
            ),
        ] {
            assert_eq!(causes(query, ReadOperation::Watch { may_list: true }), expected, "{query}");
        }
    }

    #[test]
    fn initial_events_need_the_gate() {
        let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let why = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is \
                   enabled";
        assert_eq!(causes(query, ReadOperation::Watch { may_list: false }), why);
    }
}
