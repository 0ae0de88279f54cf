//! Conversion between JSON and the values of templates.
use std::collections::BTreeMap;
use std::sync::Arc;

use gotmpl::Value as Part;
use serde_json::{Number, Value};

/// The maximum depth of a template's result. Deeper parts are dropped.
const DEPTH_MAX: usize = 100;

/// Converts JSON to a template value.
pub fn to_template(value: &Value) -> Part {
    match value {
        Value::Null => Part::Nil,
        Value::Bool(b) => Part::Bool(*b),
        Value::Number(n) => number(n),
        Value::String(s) => text(s),
        Value::Array(items) => list(items.iter().map(to_template)),
        Value::Object(map) => {
            let map = map.iter().map(|(k, v)| (Arc::from(k.as_str()), to_template(v)));
            Part::Map(Arc::new(map.collect::<BTreeMap<_, _>>()))
        }
    }
}

fn number(n: &Number) -> Part {
    n.as_i64()
        .map(Part::Int)
        .or_else(|| n.as_u64().map(Part::Uint))
        .unwrap_or_else(|| Part::Float(n.as_f64().unwrap_or(0.0)))
}

/// Creates a template value from a string.
pub fn text(s: impl AsRef<str>) -> Part {
    Part::String(Arc::from(s.as_ref()))
}

/// Creates a template value from a list.
pub fn list(items: impl IntoIterator<Item = Part>) -> Part {
    Part::List(items.into_iter().collect())
}

/// Converts a template value to JSON. Functions become null.
pub fn to_json(part: &Part) -> Value {
    within(part, DEPTH_MAX)
}

fn within(part: &Part, depth: usize) -> Value {
    let Some(depth) = depth.checked_sub(1) else { return Value::Null };
    match part {
        Part::Bool(b) => Value::Bool(*b),
        Part::Int(n) => (*n).into(),
        Part::Uint(n) => (*n).into(),
        Part::Float(n) => Number::from_f64(*n).map_or(Value::Null, Value::Number),
        Part::String(s) => Value::String(s.to_string()),
        Part::List(items) => items.iter().map(|i| within(i, depth)).collect(),
        Part::Map(map) => map.iter().map(|(k, v)| (k.to_string(), within(v, depth))).collect(),
        _ => Value::Null,
    }
}
