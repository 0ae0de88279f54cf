//! Whether what is applied is of the type of its place, in the words of structured-merge-diff's validation, which shows values as Go
//! prints its own.
use crate::printed::printed;
use kelson_schema::Shape;
use kelson_schema::shape::ScalarType;
use serde_json::Value;

/// What is wrong with a value of a place that holds one value of one type.
pub(super) fn misfit(shape: &Shape, value: &Value) -> Option<String> {
    if value.is_null() {
        return None;
    }
    match shape.scalar()? {
        ScalarType::Numeric if !value.is_number() => {
            Some(format!("expected numeric (int or float), got {}", go_type(value)))
        }
        ScalarType::Text if !value.is_string() => {
            Some(format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_syntax(value)))
        }
        ScalarType::Boolean if !value.is_boolean() => Some(format!("expected boolean, got &{{{}}}", printed(value))),
        _ => None,
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// A value as it would stand in Go's source.
fn go_syntax(value: &Value) -> String {
    let between = |all: Vec<String>| format!("{}{{{}}}", go_type(value), all.join(", "));
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(items) => between(items.iter().map(go_syntax).collect()),
        Value::Object(map) => between(map.iter().map(|(key, value)| format!("{key:?}:{}", go_syntax(value))).collect()),
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_words_are_those_of_its_validation() {
        let spec = Shape::of_kind("apps", "v1", "Deployment").child("spec").expect("a field");
        let containers = spec.child("template").and_then(|t| t.child("spec")?.child("containers")).expect("a field");
        let check = |shape: &Shape, key: &str, value: Value, want: &str| {
            let place = shape.child(key).expect("a field");
            assert_eq!(misfit(&place, &value).unwrap_or_default(), want, "{key} {value}");
        };
        check(&spec, "replicas", json!("x"), "expected numeric (int or float), got string");
        check(&spec, "replicas", json!(1.5), "");
        check(&spec, "replicas", Value::Null, "");
        check(&spec, "paused", json!("x"), "expected boolean, got &{x}");
        check(&spec, "paused", json!({"a": [1, "b"]}), "expected boolean, got &{map[a:[1 b]]}");
        let container = containers.element();
        check(&container, "image", json!(5), "expected string, got &value.valueUnstructured{Value:5}");
        let map =
            "expected string, got &value.valueUnstructured{Value:map[string]interface {}{\"a\":[]interface {}{true}}}";
        check(&container, "image", json!({"a": [true]}), map);
        let rolling = spec.child("strategy").and_then(|s| s.child("rollingUpdate")).expect("a field");
        check(&rolling, "maxSurge", json!("25%"), "");
    }
}
