//! Formats trees as Go prints them. Upstream's error messages show patches and parts of objects in this form.
use std::fmt::Write as _;

use serde_json::Value;

/// Formats a tree as Go's `%+v` does.
pub fn printed(value: &Value) -> String {
    let mut out = String::new();
    print(value, &mut out);
    out
}

fn print(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::String(text) => out.push_str(text),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                print(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push_str("map[");
            for (i, (key, value)) in map.iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                // Writing to a string cannot fail.
                let _ = write!(out, "{key}:");
                print(value, out);
            }
            out.push(']');
        }
        plain => out.push_str(&plain.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patches_are_printed_as_go_prints_them() {
        let patch = json!({"spec": {"n": 1, "f": 1.5, "list": ["a", null, true]}, "metadata": {}});
        assert_eq!(printed(&patch), "map[metadata:map[] spec:map[f:1.5 list:[a <nil> true] n:1]]");
    }
}
