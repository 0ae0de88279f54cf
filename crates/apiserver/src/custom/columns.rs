//! The table columns of a version: the name, then `additionalPrinterColumns`, or the age if there are none. Upstream:
//! `pkg/registry/customresource/tableconvertor`, with the default column in `pkg/apiserver/helpers.go`.
use jiff::Timestamp;
use kelson_resources::{Column, Text, table};
use kelson_structural::publish;
use serde_json::Value;

use crate::custom::definition::{PrinterColumn, Version};

/// Column headers and cells of one version. A row has as many cells as there are headers.
pub struct PrinterColumns {
    headers: Vec<Column>,
    cells: Vec<publish::Column>,
}

impl PrinterColumns {
    /// The columns of a version. An invalid path drops its column and all that follow, as in upstream.
    pub fn of(version: &Version) -> Self {
        let mut columns = Self { headers: vec![table_column(&name(), name().description)], cells: Vec::new() };
        let default = [age()];
        let declared = match version.additional_printer_columns.as_slice() {
            [] => &default[..],
            own => own,
        };
        for column in declared {
            let Some(cell) = publish::Column::new(&column.kind, &column.json_path) else { break };
            let description = match column.description.as_str() {
                "" => format!("Custom resource definition column (in JSONPath format): {}", column.json_path),
                own => own.to_owned(),
            };
            columns.headers.push(table_column(column, description));
            columns.cells.push(cell);
        }
        columns
    }

    /// The column definitions.
    pub fn headers(&self) -> &[Column] {
        &self.headers
    }

    /// The cells of an object. Times are shown as ages at `now`.
    pub fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let cells = self.cells.iter().map(|cell| cell.cell(object, |time| ago(time, now)));
        std::iter::once(table::name(object)).chain(cells).collect()
    }
}

fn name() -> PrinterColumn {
    PrinterColumn {
        name: "Name".to_owned(),
        kind: "string".to_owned(),
        format: "name".to_owned(),
        description: "Name of the object.".to_owned(),
        ..PrinterColumn::default()
    }
}

fn age() -> PrinterColumn {
    PrinterColumn {
        name: "Age".to_owned(),
        kind: "date".to_owned(),
        description: "Time since the object was created.".to_owned(),
        json_path: ".metadata.creationTimestamp".to_owned(),
        ..PrinterColumn::default()
    }
}

fn table_column(column: &PrinterColumn, description: String) -> Column {
    Column {
        name: Text::Owned(column.name.clone()),
        kind: Text::Owned(column.kind.clone()),
        format: Text::Owned(column.format.clone()),
        description: Text::Owned(description),
        priority: column.priority,
    }
}

/// Go's zero time, which means unset.
const UNSET_SECONDS: i64 = -62_135_596_800;

/// The age of a time; `None` for a string that is not a time. The strings "" and "null" are unset times.
fn ago(text: &str, now: Timestamp) -> Option<String> {
    if matches!(text, "" | "null") {
        return Some(table::UNKNOWN.to_owned());
    }
    let time: Timestamp = text.parse().ok().filter(|_| is_plain(text))?;
    if time.as_second() == UNSET_SECONDS && time.subsec_nanosecond() == 0 {
        return Some(table::UNKNOWN.to_owned());
    }
    Some(table::between(time, now))
}

/// Whether a time has all parts, `T`, and `Z` or a numeric zone, as upstream's RFC 3339 parser requires. The time parser here accepts
/// more.
fn is_plain(text: &str) -> bool {
    let b = text.as_bytes();
    let parts = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    let end = b.len().checked_sub(6).map(|at| &b[at..]);
    let zone = matches!(end, Some([.., b'Z'] | [b'+' | b'-', _, _, b':', _, _]));
    zone && parts.iter().all(|(at, c)| b.get(*at) == Some(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_ages() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        for (text, want) in [
            ("2025-12-31T23:59:30Z", Some("30s")),
            ("2026-01-01T00:50:00+01:00", Some("10m")),
            ("2025-12-31T21:00:00.5Z", Some("179m")),
            ("2026-01-02T00:00:00Z", Some("<invalid>")),
            ("", Some("<unknown>")),
            ("null", Some("<unknown>")),
            ("0001-01-01T00:00:00Z", Some("<unknown>")),
            ("yesterday", None),
            ("2025-12-31", None),
            ("2025-12-31 23:59:30Z", None),
            ("2025-12-31t23:59:30z", None),
            ("2025-12-31T23:59:30", None),
            ("2025-13-31T23:59:30Z", None),
        ] {
            assert_eq!(ago(text, now).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn columns_end_before_an_invalid_path() {
        let column = |name: &str, path: &str| PrinterColumn {
            name: name.to_owned(),
            kind: "string".to_owned(),
            json_path: path.to_owned(),
            ..PrinterColumn::default()
        };
        let declared = vec![column("A", ".spec.a"), column("B", ".spec["), column("C", ".spec.c")];
        let columns = PrinterColumns::of(&Version { additional_printer_columns: declared, ..Version::default() });
        let names: Vec<&str> = columns.headers().iter().map(|c| &*c.name).collect();
        assert_eq!(names, ["Name", "A"]);
        assert_eq!(columns.row(&Value::Null, Timestamp::UNIX_EPOCH).len(), 2);
    }
}
