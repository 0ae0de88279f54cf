//! Reads a document field by field and collects all errors with their field paths.
use serde_json::{Map, Value};

/// A document with the errors found so far.
pub(super) struct Reader {
    pub faults: Vec<String>,
}

impl Reader {
    pub fn fault(&mut self, at: &str, why: &str) {
        self.faults.push(format!("{at}: {why}"));
    }

    /// Returns the fields of an object. An unknown field is an error.
    pub fn fields<'v>(&mut self, at: &str, value: &'v Value, known: &[&str]) -> Option<&'v Map<String, Value>> {
        match value {
            Value::Null => None,
            Value::Object(map) => {
                for name in map.keys().filter(|name| !known.contains(&name.as_str())) {
                    self.fault(&join(at, name), "unknown field");
                }
                Some(map)
            }
            _ => {
                self.fault(at, "must be an object");
                None
            }
        }
    }

    pub fn list<'v>(&mut self, at: &str, value: &'v Value) -> &'v [Value] {
        match value {
            Value::Null => &[],
            Value::Array(all) => all,
            _ => {
                self.fault(at, "must be a list");
                &[]
            }
        }
    }

    pub fn text<'v>(&mut self, at: &str, value: &'v Value) -> Option<&'v str> {
        match value {
            Value::Null => None,
            Value::String(text) => Some(text),
            _ => {
                self.fault(at, "must be a string");
                None
            }
        }
    }

    /// Reads an integer from `low` to `high`.
    pub fn number(&mut self, at: &str, value: &Value, (low, high): (i64, i64)) -> Option<i64> {
        if value.is_null() {
            return None;
        }
        let number = value.as_i64().filter(|n| (low..=high).contains(n));
        if number.is_none() {
            self.fault(at, &format!("must be an integer from {low} to {high}, got {value}"));
        }
        number
    }

    /// Checks a field that has no effect here: it may only have one of the values in `same`.
    pub fn only(&mut self, at: &str, value: &Value, same: &[Value]) {
        if !value.is_null() && !same.contains(value) {
            self.fault(at, "is not supported");
        }
    }
}

/// Returns the path of a member.
pub(super) fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}
