//! Validation that many kinds share: ports, quantities, selectors, enumerations. Messages are upstream's.
use kelson_meta::{Quantity, is_label_value, is_qualified_name};
use serde_json::Value;

use crate::metadata;
use crate::path::{Errors, Path};
use crate::tree::{empty, entries, int0, items, present, text};

/// The message for negative numbers.
pub const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
/// The message for invalid port numbers.
pub const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";

/// Validates a number that may be absent but not negative.
pub fn not_negative(v: &Value, p: &Path<'_>, e: &mut Errors) {
    if let Some(n) = v.as_i64()
        && n < 0
    {
        e.invalid(p, n, NOT_NEGATIVE);
    }
}

/// Validates a required value of a closed set; `supported` is sorted.
pub fn one_of(v: &Value, p: &Path<'_>, supported: &[&str], e: &mut Errors) {
    let s = text(v);
    if s.is_empty() {
        e.required(p, "");
    } else if !supported.contains(&s) {
        e.not_supported(p, s, supported);
    }
}

/// Validates a domain with a path, such as the name of a controller.
pub fn domain_prefixed_path(s: &str, p: &Path<'_>, e: &mut Errors) {
    let in_path = |c: char| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c);
    if s.is_empty() {
        return e.required(p, "");
    }
    match s.split_once('/').filter(|(host, path)| !host.is_empty() && !path.is_empty()) {
        Some((host, path)) => {
            e.invalid_each(p, host, kelson_meta::is_dns1123_subdomain(host));
            if !path.chars().all(in_path) {
                e.invalid(p, path, "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')");
            }
        }
        None => e.invalid(p, s, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
}

/// Validates an optional value of a closed set.
pub fn optional_one_of(v: &Value, p: &Path<'_>, supported: &[&str], e: &mut Errors) {
    let s = text(v);
    if present(v) && !supported.contains(&s) {
        e.not_supported(p, s, supported);
    }
}

/// Validates a required string.
pub fn required(v: &Value, p: &Path<'_>, e: &mut Errors) -> bool {
    let missing = empty(v);
    if missing {
        e.required(p, "");
    }
    !missing
}

/// Validates a number from 1 to 65535.
pub fn port(v: &Value, p: &Path<'_>, e: &mut Errors) {
    let n = int0(v);
    if !(1..=65535).contains(&n) {
        e.invalid(p, n, PORT_RANGE);
    }
}

/// Validates a port by number, or by the name of a container port.
pub fn port_or_name(v: &Value, p: &Path<'_>, e: &mut Errors) {
    match v {
        Value::String(s) => e.invalid_each(p, s, port_name(s)),
        other => port(other, p, e),
    }
}

/// Validates an IANA service name: at most 15 of `a-z0-9-`, at least one letter, no double or outer dashes.
pub fn port_name(s: &str) -> Result<(), Vec<String>> {
    let mut why = Vec::new();
    if s.len() > 15 {
        why.push("must be no more than 15 bytes".to_owned());
    }
    if s.is_empty() || !s.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-') {
        why.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !s.bytes().any(|c| c.is_ascii_lowercase()) {
        why.push("must contain at least one letter (a-z)".to_owned());
    }
    if s.contains("--") {
        why.push("must not contain consecutive hyphens".to_owned());
    }
    if s.starts_with('-') || s.ends_with('-') {
        why.push("must not begin or end with a hyphen".to_owned());
    }
    if why.is_empty() { Ok(()) } else { Err(why) }
}

/// Validates a percentage such as `10%`; the error is upstream's.
pub fn is_percent(s: &str) -> Result<(), Vec<String>> {
    match s.strip_suffix('%') {
        Some(n) if !n.is_empty() && n.bytes().all(|c| c.is_ascii_digit()) => Ok(()),
        _ => Err(vec![
            "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')".to_owned(),
        ]),
    }
}

/// Validates a non-negative count or a percentage.
pub fn count_or_percent(v: &Value, p: &Path<'_>, e: &mut Errors) {
    match v {
        Value::String(s) => e.invalid_each(p, s, is_percent(s)),
        Value::Number(_) => not_negative(v, p, e),
        _ => {}
    }
}

/// Returns the percentage, if it is one.
pub fn percent(v: &Value) -> Option<i64> {
    let s = v.as_str().filter(|s| is_percent(s).is_ok())?;
    s.strip_suffix('%')?.parse().ok()
}

/// Returns the number of a percentage or of a count, also as a string, and zero for anything else.
pub fn count(v: &Value) -> i64 {
    percent(v).or_else(|| v.as_str()?.parse().ok()).unwrap_or_else(|| int0(v))
}

/// Checks that a percentage is at most 100%.
pub fn not_over_100_percent(v: &Value, p: &Path<'_>, e: &mut Errors) {
    if percent(v).is_some_and(|n| n > 100) {
        e.invalid(p, v, "must not be greater than 100%");
    }
}

/// Checks that a path has no `..` element.
pub fn no_backsteps(path: &str, p: &Path<'_>, e: &mut Errors) {
    if path.split('/').any(|s| s == "..") {
        e.invalid(p, path, "must not contain '..'");
    }
}

/// Parses a quantity; reports an invalid one.
pub fn quantity(v: &Value, p: &Path<'_>, e: &mut Errors) -> Option<Quantity> {
    let parsed = match v {
        Value::String(s) => s.parse::<Quantity>(),
        Value::Number(n) => n.to_string().parse(),
        _ => return None,
    };
    match parsed {
        Ok(q) => Some(q),
        Err(why) => {
            e.invalid(p, v, why.to_string());
            None
        }
    }
}

/// Validates a label selector object: operators, keys, values.
pub fn label_selector(v: &Value, p: &Path<'_>, e: &mut Errors) {
    metadata::labels(&v["matchLabels"], &p.child("matchLabels"), e);
    for (i, r) in items(&v["matchExpressions"]).iter().enumerate() {
        let list = p.child("matchExpressions");
        let at = list.index(i);
        let values = items(&r["values"]);
        match text(&r["operator"]) {
            "In" | "NotIn" if values.is_empty() => {
                e.required(&at.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "In" | "NotIn" => {}
            "Exists" | "DoesNotExist" => {
                if !values.is_empty() {
                    e.forbidden(
                        &at.child("values"),
                        "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                    );
                }
            }
            other => e.invalid(&at.child("operator"), other, "not a valid selector operator"),
        }
        let key = text(&r["key"]);
        e.invalid_each(&at.child("key"), key, is_qualified_name(key));
        for (j, v) in values.iter().enumerate() {
            let list = at.child("values");
            e.invalid_each(&list.index(j), text(v), is_label_value(text(v)));
        }
    }
}

/// Reports whether a label selector object matches a label map; an invalid selector matches nothing.
pub fn selector_matches(selector: &Value, labels: &Value) -> bool {
    let label = |k: &str| labels.get(k).and_then(Value::as_str);
    entries(&selector["matchLabels"]).all(|(k, v)| label(k) == v.as_str())
        && items(&selector["matchExpressions"]).iter().all(|r| {
            let value = label(text(&r["key"]));
            let listed = value.is_some_and(|v| crate::tree::holds(&r["values"], v));
            match text(&r["operator"]) {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}

/// Reports whether a selector has no requirements.
pub fn selector_empty(selector: &Value) -> bool {
    empty(&selector["matchLabels"]) && empty(&selector["matchExpressions"])
}

/// Reports duplicates of `key` in a list, with the path `[i].key`.
pub fn unique(list: &Value, key: &str, p: &Path<'_>, e: &mut Errors) {
    let mut seen = std::collections::BTreeSet::new();
    for (i, x) in items(list).iter().enumerate() {
        if !seen.insert(text(&x[key])) {
            e.duplicate(&p.index(i).child(key), &x[key]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn port_names() {
        for ok in ["http", "a-b", "0a"] {
            assert!(port_name(ok).is_ok(), "{ok}");
        }
        for bad in ["", "80", "a--b", "-a", "A", "abcdefghijklmnop"] {
            assert!(port_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn selectors_match() {
        let l = json!({"a": "1"});
        for (s, want) in [
            (json!({}), true),
            (json!({"matchLabels": {"a": "1"}}), true),
            (json!({"matchLabels": {"a": "2"}}), false),
            (json!({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}), true),
            (json!({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}), false),
        ] {
            assert_eq!(selector_matches(&s, &l), want, "{s}");
        }
    }

    #[test]
    fn percents() {
        assert!(is_percent("25%").is_ok() && is_percent("%").is_err() && is_percent("-1%").is_err());
    }
}
