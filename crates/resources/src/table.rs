//! Cells of the server-side table: ages, durations, lists (upstream `pkg/printers/internalversion`, apimachinery
//! `util/duration`). The columns of a kind are in its file.
use jiff::Timestamp;
use serde_json::Value;

use crate::tree::{entries, items, text};

/// Shown for a missing time.
pub const UNKNOWN: &str = "<unknown>";
/// Shown for a missing value.
pub const NONE: &str = "<none>";
/// Shown for an optional value that is not set.
pub const UNSET: &str = "<unset>";

/// Returns the object's name as a cell.
pub fn name(obj: &Value) -> Value {
    obj["metadata"]["name"].clone()
}
/// Returns the creation time as a cell.
pub fn created(obj: &Value) -> Value {
    obj["metadata"]["creationTimestamp"].clone()
}
/// Returns the time since creation as a cell.
pub fn age(obj: &Value, now: Timestamp) -> Value {
    Value::String(since(&obj["metadata"]["creationTimestamp"], now))
}
/// Parses an RFC 3339 time.
pub fn time(v: &Value) -> Option<Timestamp> {
    v.as_str().and_then(|s| s.parse().ok())
}
/// Formats the time from `t` to now; `<unknown>` without a time.
pub fn since(t: &Value, now: Timestamp) -> String {
    time(t).map_or_else(|| UNKNOWN.to_owned(), |t| between(t, now))
}
/// Formats the time from `a` to `b`.
pub fn between(a: Timestamp, b: Timestamp) -> String {
    // Truncated to whole seconds towards zero, as upstream's conversion of a duration.
    human_duration((b.as_nanosecond() - a.as_nanosecond()) / 1_000_000_000)
}

/// Formats seconds with two to three significant figures (`duration.HumanDuration`).
pub fn human_duration(seconds: impl Into<i128>) -> String {
    let s: i128 = seconds.into();
    let pair = |a: i128, unit_a: &str, b: i128, unit_b: &str| {
        if b == 0 { format!("{a}{unit_a}") } else { format!("{a}{unit_a}{b}{unit_b}") }
    };
    let (m, h) = (s / 60, s / 3600);
    let d = h / 24;
    match () {
        () if s < -1 => "<invalid>".to_owned(),
        () if s < 0 => "0s".to_owned(),
        () if s < 120 => format!("{s}s"),
        () if m < 10 => pair(m, "m", s % 60, "s"),
        () if m < 180 => format!("{m}m"),
        () if h < 8 => pair(h, "h", m % 60, "m"),
        () if h < 48 => format!("{h}h"),
        () if h < 24 * 8 => pair(d, "d", h % 24, "h"),
        () if h < 24 * 365 * 2 => format!("{d}d"),
        () if h < 24 * 365 * 8 => pair(d / 365, "y", d % 365, "d"),
        () => format!("{}y", d / 365),
    }
}

/// Returns container names and images, each as `a,b`.
pub fn containers(pod_spec: &Value) -> (Value, Value) {
    let join = |f: &str| {
        let all: Vec<&str> = items(&pod_spec["containers"]).iter().map(|c| text(&c[f])).collect();
        Value::String(all.join(","))
    };
    (join("name"), join("image"))
}

/// Formats a label selector object; `<none>` when empty or absent.
pub fn selector(v: &Value) -> String {
    let mut all: Vec<(String, String)> =
        entries(&v["matchLabels"]).map(|(k, v)| (k.clone(), format!("{k}={}", text(v)))).collect();
    for r in items(&v["matchExpressions"]) {
        let key = text(&r["key"]);
        let mut values: Vec<&str> = items(&r["values"]).iter().map(text).collect();
        values.sort_unstable();
        let values = values.join(",");
        let shown = match text(&r["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            other => format!("{key} {other} ({values})"),
        };
        all.push((key.to_owned(), shown));
    }
    all.sort();
    if all.is_empty() { NONE.to_owned() } else { all.into_iter().map(|(_, s)| s).collect::<Vec<_>>().join(",") }
}

/// Formats a label map as `a=b,c=d`; `<none>` when empty.
pub fn label_map(v: &Value) -> String {
    let all: Vec<String> = entries(v).map(|(k, v)| format!("{k}={}", text(v))).collect();
    if all.is_empty() { NONE.to_owned() } else { all.join(",") }
}

/// Returns a string cell; `<none>` when empty.
pub fn or_none(s: &str) -> Value {
    Value::String(if s.is_empty() { NONE.to_owned() } else { s.to_owned() })
}

/// Formats at most three elements, then ` + N more...`; `empty` when there are none.
pub fn list_with_more(list: &[String], empty: &str) -> String {
    const SHOWN: usize = 3;
    match list.len() {
        0 => empty.to_owned(),
        n if n > SHOWN => format!("{} + {} more...", list[..SHOWN].join(","), n - SHOWN),
        _ => list.join(","),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations() {
        for (s, want) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (330, "5m30s"),
            (600, "10m"),
            (10799, "179m"),
            (10800, "3h"),
            (3 * 3600 + 61, "3h1m"),
            (8 * 3600, "8h"),
            (47 * 3600, "47h"),
            (52 * 3600, "2d4h"),
            (72 * 3600, "3d"),
            (9 * 86400, "9d"),
            (800 * 86400, "2y70d"),
            (730 * 86400, "2y"),
            (3650 * 86400, "10y"),
        ] {
            assert_eq!(human_duration(s), want, "{s}");
        }
    }

    #[test]
    fn selectors() {
        let v = json!({"matchLabels": {"b": "1", "a": "2"}, "matchExpressions": [
            {"key": "c", "operator": "In", "values": ["y", "x"]}, {"key": "aa", "operator": "DoesNotExist"}]});
        assert_eq!(selector(&v), "a=2,!aa,b=1,c in (x,y)");
        assert_eq!(selector(&json!(null)), "<none>");
    }
}
