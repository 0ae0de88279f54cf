//! Cells of printer columns (upstream `pkg/registry/customresource/tableconvertor`): the first value that a column's
//! path selects, if it has the column's type.
use serde_json::Value;

use super::json_path::JsonPath;

/// A printer column, which makes cells.
#[derive(Clone, Debug)]
pub struct Column {
    path: JsonPath,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Integer,
    Number,
    Text,
    Boolean,
    Date,
    Other,
}

impl Column {
    /// Makes a column by its `type` and `jsonPath`. Returns `None` if the path is invalid.
    pub fn new(ty: &str, path: &str) -> Option<Self> {
        let kind = match ty {
            "integer" => Kind::Integer,
            "number" => Kind::Number,
            "string" => Kind::Text,
            "boolean" => Kind::Boolean,
            "date" => Kind::Date,
            _ => Kind::Other,
        };
        Some(Self { path: JsonPath::parse(path)?, kind })
    }

    /// Returns the cell of an object; null when there is nothing to show. `since` formats how long ago a time is, and
    /// returns nothing for a string that is not a time; an empty string is an unset time.
    pub fn cell(&self, object: &Value, since: impl Fn(&str) -> Option<String>) -> Value {
        let found = self.path.find(object).unwrap_or_default();
        let Some(value) = found.first() else { return Value::Null };
        match (self.kind, value) {
            (Kind::Text, value) => printed(value).into(),
            (Kind::Integer, Value::Number(n)) => {
                n.as_i64().or_else(|| n.as_f64().map(|f| f as i64)).map_or(Value::Null, Value::from)
            }
            (Kind::Number, Value::Number(_)) | (Kind::Boolean, Value::Bool(_)) => (*value).clone(),
            (Kind::Date, Value::String(time)) => since(time).unwrap_or_else(|| "<invalid>".to_owned()).into(),
            _ => Value::Null,
        }
    }
}

/// Formats a value: scalars plainly, lists and objects as JSON.
fn printed(value: &Value) -> String {
    match value {
        Value::Null => "<no value>".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
