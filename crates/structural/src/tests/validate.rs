//! What validation answers, word for word.
use super::schema;
use crate::object::{Old, check_embedded, check_lists, validate};
use kelson_meta::path::{Errors, Path};
use serde_json::{Map, Value, json};

/// Returns the errors for a value at `spec.x` with this schema.
fn faults(of_x: Value, x: Value) -> Vec<String> {
    let tree = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": of_x}}}});
    let object = json!({"spec": {"x": x}});
    let found = validate(&object, schema(tree).declared(), None, &Path::new(""));
    found.0.iter().map(ToString::to_string).collect()
}

fn check(of_x: Value, x: Value, want: &[&str]) {
    assert_eq!(faults(of_x.clone(), x.clone()), want, "{of_x} {x}");
}

#[test]
fn types() {
    let word = |found: &str, ty: &str| {
        format!("spec.x: Invalid value: \"{found}\": spec.x in body must be of type {ty}: \"{found}\"")
    };
    for (ty, good, bad, found) in [
        ("integer", json!(1), json!("1"), "string"),
        ("integer", json!(-7), json!(true), "boolean"),
        ("number", json!(1.5), json!("1"), "string"),
        ("number", json!(1), json!([]), "array"),
        ("string", json!(""), json!({}), "object"),
        ("boolean", json!(false), json!(0), "integer"),
        ("object", json!({"a": 1}), json!([]), "array"),
        ("array", json!([]), json!({}), "object"),
        ("string", json!("a"), json!(null), "null"),
        ("string", json!("a"), json!(1.5), "number"),
    ] {
        let mut tree = json!({"type": ty, "x-kubernetes-preserve-unknown-fields": true});
        if ty == "array" {
            tree["items"] = json!({"type": "string"});
        }
        check(tree.clone(), good, &[]);
        check(tree, bad, &[&word(found, ty)]);
    }
    check(json!({"type": "string", "nullable": true}), json!(null), &[]);
    check(
        json!({"type": "integer"}),
        json!(1.5),
        &[
            &word("number", "integer"),
            "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec.x",
        ],
    );
    check(json!({"x-kubernetes-int-or-string": true}), json!("1"), &[]);
    check(json!({"x-kubernetes-int-or-string": true}), json!(1), &[]);
    check(json!({"x-kubernetes-int-or-string": true}), json!(true), &[&word("boolean", "integer,string")]);
}

#[test]
fn strings() {
    let of = |key: &str, value: Value| json!({"type": "string", key: value});
    check(of("maxLength", json!(3)), json!("äöü"), &[]);
    check(of("maxLength", json!(3)), json!("abcd"), &["spec.x: Too long: may not be more than 3 bytes"]);
    check(
        of("minLength", json!(2)),
        json!("a"),
        &["spec.x: Invalid value: \"a\": spec.x in body should be at least 2 chars long"],
    );
    check(
        of("pattern", json!("^[a-z]+$")),
        json!("A1"),
        &["spec.x: Invalid value: \"A1\": spec.x in body should match '^[a-z]+$'"],
    );
    check(
        of("enum", json!(["a", "b"])),
        json!("c"),
        &["spec.x: Unsupported value: \"c\": supported values: \"a\", \"b\""],
    );
    check(of("enum", json!(["a", "b"])), json!("b"), &[]);
    check(
        of("format", json!("date-time")),
        json!("yesterday"),
        &["spec.x: Invalid value: \"yesterday\": spec.x in body must be of type date-time: \"yesterday\""],
    );
    check(of("format", json!("made-up")), json!("anything"), &[]);
    check(
        of("format", json!("date")),
        json!(5),
        &["spec.x: Invalid value: \"int64\": spec.x in body must be of type date: \"int64\""],
    );
    check(
        json!({"type": "integer", "enum": [1, 2]}),
        json!(3),
        &["spec.x: Unsupported value: 3: supported values: \"1\", \"2\""],
    );
}

#[test]
fn numbers() {
    let of = |ty: &str, key: &str, value: Value| json!({"type": ty, key: value});
    let said = |value: &str, why: &str| vec![format!("spec.x: Invalid value: {value}: spec.x in body {why}")];
    for (tree, x, want) in [
        (of("integer", "maximum", json!(5)), json!(6), said("6", "should be less than or equal to 5")),
        (of("integer", "minimum", json!(5)), json!(4), said("4", "should be greater than or equal to 5")),
        (of("number", "maximum", json!(1.5)), json!(1.75), said("1.75", "should be less than or equal to 1.5")),
        (of("number", "multipleOf", json!(0.1)), json!(0.25), said("0.25", "should be a multiple of 0.1")),
        (of("integer", "multipleOf", json!(3)), json!(7), said("7", "should be a multiple of 3")),
        (of("integer", "maximum", json!(5)), json!(5), vec![]),
        (of("number", "multipleOf", json!(0.1)), json!(0.3), vec![]),
        (
            json!({"type": "integer", "maximum": 5, "exclusiveMaximum": true}),
            json!(5),
            said("5", "should be less than 5"),
        ),
        (
            json!({"type": "integer", "minimum": 5, "exclusiveMinimum": true}),
            json!(5),
            said("5", "should be greater than 5"),
        ),
        (of("integer", "format", json!("int64")), json!(1_i64 << 40), vec![]),
        (
            of("integer", "format", json!("int32")),
            json!(1_i64 << 40),
            vec![
                "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec.x"
                    .to_owned(),
            ],
        ),
        (
            of("number", "format", json!("float")),
            json!(1e300),
            vec![
                "<nil>: Invalid value: \"\": Checked value must be of type number with format float in spec.x"
                    .to_owned(),
            ],
        ),
    ] {
        assert_eq!(faults(tree.clone(), x.clone()), want, "{tree} {x}");
    }
}

#[test]
fn lists_and_objects() {
    let list = |key: &str, n: u64| json!({"type": "array", "items": {"type": "integer"}, key: n});
    check(list("maxItems", 1), json!([1, 2]), &["spec.x: Too many: 2: must have at most 1 item"]);
    check(list("minItems", 2), json!([1]), &["spec.x: Invalid value: 1: spec.x in body should have at least 2 items"]);
    check(
        list("minItems", 0),
        json!([1, "a"]),
        &["spec.x[1]: Invalid value: \"string\": spec.x[1] in body must be of type integer: \"string\""],
    );
    let map = |key: &str, n: u64| json!({"type": "object", "additionalProperties": {"type": "integer"}, key: n});
    check(map("maxProperties", 1), json!({"a": 1, "b": 2}), &["spec.x: Too many: 2: must have at most 1 item"]);
    check(
        map("minProperties", 2),
        json!({"a": "z"}),
        &[
            "spec.x: Invalid value: 1: spec.x in body should have at least 2 properties",
            "spec.x.a: Invalid value: \"string\": spec.x.a in body must be of type integer: \"string\"",
        ],
    );
    check(
        json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}),
        json!({"b": 1}),
        &[
            "spec.x.b: Invalid value: \"integer\": spec.x.b in body must be of type string: \"integer\"",
            "spec.x.a: Required value",
        ],
    );
}

#[test]
fn alternatives() {
    let props = json!({"a": {"type": "string"}, "b": {"type": "string"}});
    let of = |key: &str, clauses: Value| json!({"type": "object", "properties": props, key: clauses});
    let either = json!([{"required": ["a"]}, {"required": ["b"]}]);
    check(of("oneOf", either.clone()), json!({"a": ""}), &[]);
    check(
        of("oneOf", either.clone()),
        json!({"a": "", "b": ""}),
        &[
            "<nil>: Invalid value: \"\": \"spec.x\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
        ],
    );
    check(
        of("oneOf", either.clone()),
        json!({}),
        &[
            "<nil>: Invalid value: \"\": \"spec.x\" must validate one and only one schema (oneOf). Found none valid",
            "spec.x.a: Required value",
        ],
    );
    check(
        of("anyOf", either.clone()),
        json!({}),
        &[
            "<nil>: Invalid value: \"\": \"spec.x\" must validate at least one schema (anyOf)",
            "spec.x.a: Required value",
        ],
    );
    check(of("anyOf", either.clone()), json!({"a": "", "b": ""}), &[]);
    check(
        of("allOf", either),
        json!({"a": ""}),
        &["spec.x.b: Required value", "<nil>: Invalid value: \"\": \"spec.x\" must validate all the schemas (allOf)"],
    );
    check(
        of("not", json!({"required": ["a"]})),
        json!({"a": ""}),
        &["<nil>: Invalid value: \"\": \"spec.x\" must not validate the schema (not)"],
    );
    check(of("not", json!({"required": ["a"]})), json!({}), &[]);
}

/// Alternatives nested in alternatives are asked a bounded number of times.
#[test]
fn nested_alternatives_stay_linear() {
    let mut clause = json!({"pattern": "^never$"});
    for _ in 0..40 {
        clause = json!({"anyOf": [clause, {"pattern": "^nor this$"}]});
    }
    clause["type"] = json!("string");
    assert!(faults(clause, json!("x")).len() > 1);
}

#[test]
fn an_object_that_asks_too_much_is_refused() {
    let clauses: Vec<Value> = (0..500).map(|i| json!({"maxLength": i})).collect();
    let tree = json!({"type": "array", "items": {"type": "string", "anyOf": clauses}});
    let long = "x".repeat(600);
    let found = faults(tree, json!(vec![Value::from(long); 40_000]));
    assert!(found.len() <= 1002, "{}", found.len());
    assert!(!found.is_empty());
}

fn update(tree: Value, old: Value, new: Value) -> Vec<String> {
    let schema = schema(tree);
    let old = Old { value: &old, node: schema.declared() };
    validate(&new, schema.declared(), Some(old), &Path::new("")).0.iter().map(ToString::to_string).collect()
}

#[test]
fn what_did_not_change_is_not_refused() {
    let tree = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "short": {"type": "string", "maxLength": 2},
        "other": {"type": "string"},
        "atomic": {"type": "array", "items": {"type": "string", "maxLength": 2}},
        "byname": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"],
                   "items": {"type": "object", "properties": {"n": {"type": "string"}, "v": {"type": "string", "maxLength": 2}}}}}}}});
    let spec = |spec: Value| json!({ "spec": spec });
    let old =
        spec(json!({"short": "long", "atomic": ["long"], "byname": [{"n": "a", "v": "long"}, {"n": "b", "v": "x"}]}));
    assert_eq!(update(tree.clone(), old.clone(), old.clone()), [""; 0]);
    let changed = spec(json!({"short": "long", "other": "new", "atomic": ["long"],
        "byname": [{"n": "b", "v": "y"}, {"n": "a", "v": "long"}]}));
    assert_eq!(update(tree.clone(), old.clone(), changed), [""; 0], "unchanged parts of a changed object");
    let worse = spec(json!({"short": "longer", "atomic": ["long", "ok"], "byname": [{"n": "c", "v": "long"}]}));
    assert_eq!(
        update(tree, old, worse),
        [
            "spec.atomic[0]: Too long: may not be more than 2 bytes",
            "spec.byname[0].v: Too long: may not be more than 2 bytes",
            "spec.short: Too long: may not be more than 2 bytes",
        ]
    );
}

#[test]
fn a_status_is_validated_at_its_path() {
    let tree = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let found = validate(&json!({"n": "a"}), schema(tree.clone()).declared(), None, &Path::new("status"));
    assert_eq!(
        found.0[0].to_string(),
        "status.n: Invalid value: \"string\": n in body must be of type integer: \"string\""
    );
    let found = validate(&json!([]), schema(tree).declared(), None, &Path::new("status"));
    assert_eq!(found.0[0].to_string(), "status: Invalid value: \"array\":  in body must be of type object: \"array\"");
}

fn listed(tree: Value, list: Value) -> Vec<String> {
    let tree = json!({"type": "object", "properties": {"l": tree}});
    let mut e = Errors::new();
    check_lists(&json!({"l": list}), schema(tree).declared(), &Path::new(""), &mut e);
    e.finish().0.iter().map(ToString::to_string).collect()
}

#[test]
fn elements_of_sets_and_maps_are_unique() {
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    assert_eq!(
        listed(set.clone(), json!(["a", "b", "a", "a", "b"])),
        ["l[2]: Duplicate value: \"a\"", "l[4]: Duplicate value: \"b\"",]
    );
    assert_eq!(listed(set, json!([1, "1", 1.5, true, "true", [1], [1, 2]])), [""; 0]);
    let map = |keys: Value| {
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}})
    };
    assert_eq!(
        listed(map(json!(["k"])), json!([{"k": 1, "v": 1}, {"k": 2}, {"k": 1, "v": 2}, {}, {}])),
        ["l[2]: Duplicate value: {\"k\":1}", "l[4]: Duplicate value: {}",]
    );
    assert_eq!(
        listed(map(json!(["a", "b"])), json!([{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": 2}])),
        ["l[2]: Duplicate value: {\"a\":1,\"b\":2}",]
    );
    assert_eq!(
        listed(map(json!(["k"])), json!([{"k": 1}, "x"])),
        ["l[1]: Invalid value: \"x\": must be an object for an array of list-type map",]
    );
}

#[test]
fn embedded_objects_are_objects() {
    let tree = schema(json!({"type": "object", "properties": {"o": {"type": "object",
        "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}));
    for (o, want) in [
        (json!({"apiVersion": "v1", "kind": "Pod"}), vec![]),
        (json!({}), vec!["o.apiVersion: Required value", "o.kind: Required value"]),
        (
            json!({"apiVersion": "a/b/c", "kind": ""}),
            vec![
                "o.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
                "o.kind: Invalid value: \"\": must not be empty",
            ],
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "..", "namespace": "A_"}}),
            vec!["o.metadata.name: Invalid value: \"..\": may not be '..'"],
        ),
    ] {
        let mut e = Errors::new();
        check_embedded(&json!({"o": o}), tree.declared(), &Path::new(""), &mut e);
        let found: Vec<String> = e.finish().0.iter().map(ToString::to_string).collect();
        assert!(found.len() >= want.len() && want.iter().zip(&found).all(|(w, f)| w == f), "{o}: {found:?}");
        assert_eq!(want.is_empty(), found.is_empty(), "{o}: {found:?}");
    }
}

/// A million elements in a list of type set cost what a million look-ups do.
#[test]
fn large_lists_stay_linear() {
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}});
    let many: Vec<Value> = (0..100_000).map(Value::from).collect();
    assert_eq!(listed(set, many.into()), [""; 0]);
    let wide: Map<String, Value> = (0..20_000).map(|i| (format!("k{i}"), Value::from(i))).collect();
    check(json!({"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}), wide.into(), &[]);
}
