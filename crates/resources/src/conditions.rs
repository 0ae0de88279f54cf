//! Conditions in the form of all newer kinds (`meta/v1` Condition), and their validation.
use kelson_meta::is_qualified_name;
use serde_json::Value;

use crate::path::{Errors, Path};
use crate::tree::{items, present, text};

const STATUSES: [&str; 3] = ["False", "True", "Unknown"];
const REASON_MAX: usize = 1024;
const MESSAGE_MAX: usize = 32 * 1024;
const REASON_FORM: &str = "a condition reason must start with alphabetic character, optionally followed by a string of \
    alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or \
    'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is \
    '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

/// Validates a list of conditions.
pub fn check(list: &Value, p: &Path<'_>, e: &mut Errors) {
    let all = items(list);
    for (i, condition) in all.iter().enumerate() {
        let (at, kind) = (p.index(i), text(&condition["type"]));
        if all[..i].iter().any(|before| text(&before["type"]) == kind) {
            e.duplicate(&at.child("type"), kind);
        }
        one(condition, &at, e);
    }
}

fn one(condition: &Value, at: &Path<'_>, e: &mut Errors) {
    let of = |key: &str| text(&condition[key]);
    e.invalid_each(&at.child("type"), of("type"), is_qualified_name(of("type")));
    if !STATUSES.contains(&of("status")) {
        e.not_supported(&at.child("status"), of("status"), &STATUSES);
    }
    if let Some(generation) = condition["observedGeneration"].as_i64().filter(|n| *n < 0) {
        e.invalid(&at.child("observedGeneration"), generation, "must be greater than or equal to zero");
    }
    if !present(&condition["lastTransitionTime"]) {
        e.required(&at.child("lastTransitionTime"), "");
    }
    let reason = of("reason");
    if reason.is_empty() {
        e.required(&at.child("reason"), "");
    } else if !is_reason(reason) {
        e.invalid(&at.child("reason"), reason, REASON_FORM);
    }
    if reason.len() > REASON_MAX {
        e.too_long(&at.child("reason"), REASON_MAX);
    }
    if of("message").len() > MESSAGE_MAX {
        e.too_long(&at.child("message"), MESSAGE_MAX);
    }
}

fn is_reason(text: &str) -> bool {
    let within = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(|c| within(*c))
        && bytes.iter().all(|c| within(*c) || matches!(c, b',' | b':'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reported(errors: Errors) -> String {
        let found = errors.finish();
        if found.is_empty() { String::new() } else { found.to_string() }
    }

    #[test]
    fn what_is_wrong_with_conditions() {
        let good = json!({"type": "Ready", "status": "True", "reason": "A,b:C_1", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1});
        let rows = [
            ("type", json!("Ready"), ""),
            ("type", json!("a b"), "[1].type: Invalid value"),
            (
                "status",
                json!(""),
                "[1].status: Unsupported value: \"\": supported values: \"False\", \"True\", \"Unknown\"",
            ),
            (
                "observedGeneration",
                json!(-1),
                "[1].observedGeneration: Invalid value: -1: must be greater than or equal to zero",
            ),
            ("lastTransitionTime", json!(null), "[1].lastTransitionTime: Required value"),
            ("reason", json!(""), "[1].reason: Required value"),
            ("reason", json!("1a"), "[1].reason: Invalid value: \"1a\": a condition reason must start with"),
            ("reason", json!("a:"), "[1].reason: Invalid value: \"a:\": a condition reason must start with"),
            ("reason", json!("a".repeat(1025)), "[1].reason: Too long: may not be more than 1024 bytes"),
            ("message", json!("a".repeat(32769)), "[1].message: Too long: may not be more than 32768 bytes"),
        ];
        for (field, value, want) in rows {
            let mut condition = good.clone();
            condition[field] = value;
            let mut errors = Errors::new();
            let first = json!({"type": "Other", "status": "False", "reason": "r", "lastTransitionTime": "t"});
            check(&json!([first, condition]), &Path::new("conditions"), &mut errors);
            let found = reported(errors);
            if want.is_empty() {
                assert_eq!(found, "", "{condition}");
            } else {
                assert!(found.contains(&format!("conditions{want}")), "{found}");
            }
        }
        let mut errors = Errors::new();
        check(&json!([good, good]), &Path::new("conditions"), &mut errors);
        assert_eq!(reported(errors), "conditions[1].type: Duplicate value: \"Ready\"");
    }
}
