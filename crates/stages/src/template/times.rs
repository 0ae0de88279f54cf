//! Functions for times and durations. Times are RFC 3339 strings, as in the API.
use gotmpl::{Result, Value};
use jiff::{SignedDuration, Timestamp};

use super::arguments::{Arguments, Row, fault, nanoseconds};
use super::cluster::written;
use super::convert::text;

fn time(value: &Value) -> Result<Timestamp> {
    match value {
        Value::String(s) => s.parse().map_err(|_| fault(format!("must be a time, got {s:?}"))),
        Value::Int(seconds) => Timestamp::from_second(*seconds).map_err(|e| fault(e.to_string())),
        other => Err(fault(format!("must be a time, got {}", other.type_name()))),
    }
}

/// Adds a duration, which may be negative, to a time.
fn moved(a: &Arguments<'_>) -> Result<Value> {
    let by = nanoseconds(a.at(0)).ok_or_else(|| fault(format!("must be a duration, got {:?}", a.text(0))))?;
    let time = time(a.at(1))?.checked_add(by).map_err(|e| fault(e.to_string()))?;
    Ok(text(written(time)))
}

/// Formats a time by a Go layout, which is written as the reference time (2 January 2006, 15:04:05).
fn formatted(a: &Arguments<'_>) -> Result<Value> {
    let mut format = a.text(0).replace('%', "%%");
    for (layout, directive) in LAYOUTS {
        format = format.replace(layout, directive);
    }
    Ok(text(time(a.last())?.strftime(&format).to_string()))
}

/// The elements of Go's layouts. An element comes before the elements that it contains.
const LAYOUTS: [(&str, &str); 14] = [
    ("2006", "%Y"),
    ("January", "%B"),
    ("Jan", "%b"),
    ("Monday", "%A"),
    ("Mon", "%a"),
    ("Z07:00", "Z"),
    ("MST", "UTC"),
    ("15", "%H"),
    ("01", "%m"),
    ("02", "%d"),
    ("03", "%I"),
    ("04", "%M"),
    ("05", "%S"),
    ("PM", "%p"),
];

/// Formats whole seconds as Go formats a duration: `1h2m3s`.
fn spoken(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (h, m) {
        (0, 0) => format!("{s}s"),
        (0, m) => format!("{m}m{s}s"),
        (h, m) => format!("{h}h{m}m{s}s"),
    }
}

/// The functions for times: name, minimum number of arguments, implementation.
pub const ROWS: &[Row] = &[
    ("toDate", 2, |a| Ok(text(written(time(a.at(1))?)))),
    ("unixEpoch", 1, |a| Ok(text(time(a.at(0))?.as_second().to_string()))),
    ("date", 2, formatted),
    ("dateModify", 2, moved),
    ("date_modify", 2, moved),
    ("duration", 1, |a| Ok(text(spoken(SignedDuration::from_secs(a.integer(0)))))),
];
