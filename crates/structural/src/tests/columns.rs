//! Cells of printer columns, and the paths that lead to them.
use crate::publish::{Column, JsonPath};
use serde_json::{Value, json};

fn object() -> Value {
    json!({
        "metadata": {"annotations": {"example.com/a.b": "dotted"}},
        "spec": {"n": 3, "f": 2.5, "s": "text", "b": true, "list": ["a", "b", "c"], "none": null, "o": {"k": 1}},
        "status": {"conditions": [
            {"type": "Ready", "status": "True", "age": 5, "at": "2020-01-01T00:00:00Z"},
            {"type": "Synced", "status": "False", "age": 7, "reason": "Why"}]},
    })
}

#[test]
fn paths_lead_to_values() {
    for (path, want) in [
        (".spec.s", Some(json!(["text"]))),
        ("$.spec.n", Some(json!([3]))),
        (".spec.missing", Some(json!([]))),
        (".spec.list[0]", Some(json!(["a"]))),
        (".spec.list[-1]", Some(json!(["c"]))),
        (".spec.list[1:]", Some(json!(["b", "c"]))),
        (".spec.list[0:3:2]", Some(json!(["a", "c"]))),
        (".spec.list[0,2]", Some(json!(["a", "c"]))),
        (".spec.list[*]", Some(json!(["a", "b", "c"]))),
        (".spec.list[9]", None),
        (".spec.s[0]", None),
        (".metadata.annotations.example\\.com/a\\.b", Some(json!(["dotted"]))),
        (".metadata.annotations['example.com/a.b']", Some(json!(["dotted"]))),
        (".status.conditions[?(@.type==\"Ready\")].status", Some(json!(["True"]))),
        (".status.conditions[?(@.type=='Synced')].reason", Some(json!(["Why"]))),
        (".status.conditions[?(@.age>5)].type", Some(json!(["Synced"]))),
        (".status.conditions[?(@.age<=7)].type", Some(json!(["Ready", "Synced"]))),
        (".status.conditions[?(@.reason)].type", Some(json!(["Synced"]))),
        (".status.conditions[?(@.type!=\"Ready\")].age", Some(json!([7]))),
        (".status.conditions[?(@.age==\"5\")].type", None),
        (".status.conditions[*].type", Some(json!(["Ready", "Synced"]))),
        ("..reason", Some(json!(["Why"]))),
        (".spec.o.*", Some(json!([1]))),
    ] {
        let parsed = JsonPath::parse(path).unwrap_or_else(|| panic!("{path} is a path"));
        let object = object();
        let got = parsed.find(&object).map(|found| Value::from(found.into_iter().cloned().collect::<Vec<_>>()));
        assert_eq!(got, want, "{path}");
    }
    for bad in [".a[", ".a[?(@.b==)]", ".a[x]", ".a['b", ".a]b["] {
        assert!(JsonPath::parse(bad).is_none_or(|p| p.find(&object()).is_none_or(|f| f.is_empty())), "{bad}");
    }
    for bad in ["$(X)", "*", "*.a.b", "../x", "/abs/x", "a\nb", "{{ .x }}"] {
        assert!(JsonPath::parse(bad).is_none(), "{bad}");
    }
}

#[test]
fn cells_are_of_their_column() {
    let since = |time: &str| match time {
        "" => Some("<unknown>".to_owned()),
        "2020-01-01T00:00:00Z" => Some("5y".to_owned()),
        _ => None,
    };
    for (ty, path, want) in [
        ("integer", ".spec.n", json!(3)),
        ("integer", ".spec.f", json!(2)),
        ("integer", ".spec.s", json!(null)),
        ("number", ".spec.f", json!(2.5)),
        ("boolean", ".spec.b", json!(true)),
        ("boolean", ".spec.s", json!(null)),
        ("string", ".spec.s", json!("text")),
        ("string", ".spec.n", json!("3")),
        ("string", ".spec.o", json!("{\"k\":1}")),
        ("string", ".spec.list", json!("[\"a\",\"b\",\"c\"]")),
        ("string", ".spec.missing", json!(null)),
        ("date", ".status.conditions[?(@.type==\"Ready\")].at", json!("5y")),
        ("date", ".spec.s", json!("<invalid>")),
        ("date", ".spec.n", json!(null)),
    ] {
        assert_eq!(Column::new(ty, path).unwrap().cell(&object(), since), want, "{ty} {path}");
    }
}
