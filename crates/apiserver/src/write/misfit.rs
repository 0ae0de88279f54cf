//! Error messages for a tree after a strategic merge patch that does not fit its type, in the words of upstream's converter
//! (apimachinery `pkg/runtime/converter.go`).
use kelson_schema::{Kind, TypeId};
use serde_json::Value;

/// Depth of nested objects and lists that is checked.
const DEPTH_MAX: usize = 64;

/// The error for the first value that does not fit; `None` if upstream's message comes from elsewhere (times, quantities).
pub fn explain(ty: TypeId, value: &Value) -> Option<String> {
    any(Kind::Struct(ty), value, 0)
}

/// The kind of a value in Go's reflection.
fn name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}

/// Whether a number has a fraction.
fn is_broken(n: &serde_json::Number) -> bool {
    n.as_f64().is_some_and(|n| n.fract() != 0.0)
}

fn any(kind: Kind, value: &Value, depth: usize) -> Option<String> {
    if value.is_null() || depth > DEPTH_MAX {
        return None;
    }
    let found = name(value);
    match (kind, value) {
        (Kind::Struct(ty), Value::Object(map)) => {
            ty.json_fields().find_map(|f| any(f.ty().kind(), map.get(f.json())?, depth + 1))
        }
        (Kind::Struct(_), _) => Some(format!("cannot restore struct from: {found}")),
        (Kind::Map(of), Value::Object(map)) => map.values().find_map(|v| any(of.kind(), v, depth + 1)),
        (Kind::Map(_), _) => Some(format!("cannot restore map from {found}")),
        (Kind::List(of) | Kind::WrappedList(of), Value::Array(items)) => {
            items.iter().find_map(|v| any(of.kind(), v, depth + 1))
        }
        (Kind::List(_) | Kind::WrappedList(_), _) => Some(format!("cannot restore slice from {found}")),
        (Kind::Bytes, Value::String(_)) => None,
        (Kind::Bytes, _) => Some(format!("cannot restore slice from {found}")),
        (Kind::Bool, Value::Bool(_)) | (Kind::String, Value::String(_)) => None,
        // Conversions that Go accepts but JSON decoding does not have other messages.
        (Kind::String, Value::Number(n)) if !n.is_f64() => Some("cannot convert int64 to string".to_owned()),
        (Kind::Int32, Value::Number(n)) if is_broken(n) => Some("cannot convert float64 to int32".to_owned()),
        (Kind::Int64, Value::Number(n)) if is_broken(n) => Some("cannot convert float64 to int64".to_owned()),
        (Kind::Int32 | Kind::Int64 | Kind::Double, Value::Number(_)) => None,
        (Kind::Bool, _) => Some("unrecognized type: bool".to_owned()),
        (Kind::String, _) => Some("unrecognized type: string".to_owned()),
        (Kind::Int32, _) => Some("unrecognized type: int32".to_owned()),
        (Kind::Int64, _) => Some("unrecognized type: int64".to_owned()),
        (Kind::Double, _) => Some("unrecognized type: float64".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kelson_schema::Schema;
    use serde_json::json;

    #[test]
    fn messages_are_those_of_upstreams_converter() {
        let pod = Schema::builtin().by_gvk("", "v1", "Pod").expect("pods");
        let check = |object: Value, expected: &str| {
            assert_eq!(explain(pod, &object).as_deref().unwrap_or(""), expected, "{object}");
        };
        check(json!({"metadata": {"labels": "x"}}), "cannot restore map from string");
        check(json!({"metadata": {"labels": {"a": 1}}}), "cannot convert int64 to string");
        check(json!({"metadata": {"labels": {"a": true}}}), "unrecognized type: string");
        check(json!({"spec": "x"}), "cannot restore struct from: string");
        check(json!({"spec": {"containers": {}}}), "cannot restore slice from map");
        check(json!({"spec": {"hostNetwork": "yes"}}), "unrecognized type: bool");
        check(json!({"spec": {"priority": "high"}}), "unrecognized type: int32");
        check(json!({"spec": {"priority": 1.5}}), "cannot convert float64 to int32");
        check(json!({"spec": {"priority": 1.0}}), "");
        check(json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}), "");
    }
}
