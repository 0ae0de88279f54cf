//! What validation rules say of objects.
use super::schema;
use crate::Validator;
use crate::object::Old;
use crate::rules::{Brackets, Rules, field_path};
use kelson_meta::FieldErrors;
use kelson_meta::path::Path;
use serde_json::{Value, json};

/// Returns a schema whose `spec` has these properties and rules.
fn with_rules(properties: Value, rules: Value) -> Value {
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": properties, "x-kubernetes-validations": rules}}})
}

fn create(tree: Value, spec: Value) -> Vec<String> {
    let mut errors = FieldErrors::new();
    let object = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}, "spec": spec});
    Validator::new(schema(tree)).check_create(&object, FieldErrors::new(), &mut errors);
    errors.0.iter().map(ToString::to_string).collect()
}

fn update(tree: Value, old: Value, new: Value) -> (Vec<String>, Vec<String>) {
    let mut errors = FieldErrors::new();
    let object = |spec: Value| json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}, "spec": spec});
    let warnings =
        Validator::new(schema(tree)).check_update(&object(new), &object(old), FieldErrors::new(), &mut errors);
    (errors.0.iter().map(ToString::to_string).collect(), warnings)
}

fn sizes() -> Value {
    json!({"min": {"type": "integer"}, "max": {"type": "integer"}, "name": {"type": "string", "maxLength": 10}})
}

#[test]
fn a_failed_rule_has_the_message_of_its_author() {
    let rule = |more: Value| {
        let mut rule = json!({"rule": "self.min <= self.max"});
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        with_rules(sizes(), json!([rule]))
    };
    let bad = json!({"min": 3, "max": 2});
    for (more, want) in [
        (json!({}), "spec: Invalid value: failed rule: self.min <= self.max"),
        (json!({"message": " too small "}), "spec: Invalid value: too small"),
        (
            json!({"messageExpression": "'min %d > max'.format([self.min])", "message": "plain"}),
            "spec: Invalid value: min 3 > max",
        ),
        (json!({"messageExpression": "self.name", "message": "plain"}), "spec: Invalid value: plain"),
        (json!({"reason": "FieldValueForbidden", "message": "m"}), "spec: Forbidden: m"),
        (json!({"reason": "FieldValueRequired", "message": "m"}), "spec: Required value: m"),
        (json!({"fieldPath": ".max", "message": "m"}), "spec.max: Invalid value: m"),
    ] {
        assert_eq!(create(rule(more.clone()), bad.clone()), [want], "{more}");
        assert_eq!(create(rule(more), json!({"min": 1, "max": 2})), [""; 0]);
    }
}

#[test]
fn what_cannot_be_evaluated_is_a_fault() {
    let tree = with_rules(sizes(), json!([{"rule": "self.min <= self.max"}]));
    assert_eq!(
        create(tree, json!({"min": 1})),
        ["spec: Invalid value: \"object\": no such key: max evaluating rule: self.min <= self.max"]
    );
    let tree = with_rules(json!({"any": {"x-kubernetes-int-or-string": true}}), json!([{"rule": "self.any < 5"}]));
    assert_eq!(create(tree.clone(), json!({"any": 4})), [""; 0]);
    assert_eq!(
        create(tree, json!({"any": "x"})),
        ["spec: Invalid value: \"object\": 'no such overload': call arguments did not match a supported operator, \
         function or macro signature for rule: self.any < 5"]
    );
}

#[test]
fn scalars_lists_maps_and_the_root() {
    let tree = json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.metadata.name.startsWith('n')"}],
        "properties": {"spec": {"type": "object", "properties": {
            "n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self % 2 == 0", "message": "odd"}]},
            "l": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 5,
                  "x-kubernetes-validations": [{"rule": "self != 'bad'"}]}},
            "m": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "object",
                  "properties": {"v": {"type": "boolean"}}, "x-kubernetes-validations": [{"rule": "self.v", "message": "no"}]}}}}}});
    assert_eq!(create(tree.clone(), json!({"n": 2, "l": ["ok"], "m": {"a": {"v": true}}})), [""; 0]);
    assert_eq!(
        create(tree, json!({"n": 3, "l": ["ok", "bad"], "m": {"a": {"v": false}}})),
        [
            "spec.l[1]: Invalid value: \"bad\": failed rule: self != 'bad'",
            "spec.m[a]: Invalid value: no",
            "spec.n: Invalid value: 3: odd",
        ]
    );
    let root = json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.metadata.name == 'other'"}]});
    assert_eq!(create(root, json!(null)), ["<nil>: Invalid value: failed rule: self.metadata.name == 'other'"]);
}

#[test]
fn rules_wait_for_what_they_could_stumble_over() {
    let tree = with_rules(sizes(), json!([{"rule": "self.min <= self.max"}]));
    assert_eq!(
        create(tree, json!({"min": "x", "max": 1})),
        [
            "spec.min: Invalid value: \"string\": spec.min in body must be of type integer: \"string\"",
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the \
         existing errors to complete validation",
        ]
    );
}

#[test]
fn transitions() {
    let tree = with_rules(
        json!({
            "n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "shrinks"}]},
            "o": {"type": "integer", "x-kubernetes-validations": [
                {"rule": "oldSelf.hasValue() || self == 1", "optionalOldSelf": true, "message": "starts at 1"}]},
            "byname": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "maxItems": 5,
                "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer",
                    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "immutable"}]}}}}}),
        json!([]),
    );
    assert_eq!(create(tree.clone(), json!({"n": 1, "o": 1, "byname": [{"k": "a", "v": 1}]})), [""; 0]);
    assert_eq!(create(tree.clone(), json!({"o": 2})), ["spec.o: Invalid value: 2: starts at 1"]);
    let old = json!({"n": 5, "byname": [{"k": "a", "v": 1}, {"k": "b", "v": 2}]});
    let (errors, _) =
        update(tree.clone(), old.clone(), json!({"n": 6, "byname": [{"k": "b", "v": 2}, {"k": "c", "v": 9}]}));
    assert_eq!(errors, [""; 0], "elements are found by their keys");
    let (errors, _) = update(tree, old, json!({"n": 4, "byname": [{"k": "b", "v": 3}]}));
    assert_eq!(errors, ["spec.byname[0].v: Invalid value: 3: immutable", "spec.n: Invalid value: 4: shrinks"]);
}

#[test]
fn unchanged_parts_may_break_rules() {
    let tree = with_rules(
        json!({"a": {"type": "object", "properties": {"v": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "self.v < 5", "message": "large"}]}, "b": {"type": "integer"}}),
        json!([]),
    );
    let old = json!({"a": {"v": 9}, "b": 1});
    let (errors, warnings) = update(tree.clone(), old.clone(), json!({"a": {"v": 9}, "b": 2}));
    assert_eq!((errors, warnings), (vec![], vec!["spec.a: Invalid value: large".to_owned()]));
    let (errors, warnings) = update(tree, old, json!({"a": {"v": 8}, "b": 1}));
    assert_eq!((errors, warnings), (vec!["spec.a: Invalid value: large".to_owned()], vec![]));
}

#[test]
fn budgets_end_it() {
    let tree = schema(with_rules(
        json!({"l": {"type": "array", "items": {"type": "integer"}}}),
        json!([{"rule": "self.l.all(x, self.l.all(y, x + y >= 0))"}, {"rule": "false"}]),
    ));
    let rules = Rules::of(tree.declared(), true);
    let object = json!({"spec": {"l": (0..2000).collect::<Vec<_>>()}});
    let verdict = rules.ask(&Path::new(""), &object, None, None);
    assert_eq!(verdict.left, 0);
    let reported: Vec<String> = verdict.errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        reported,
        [
            "spec: Invalid value: \"object\": 'operation cancelled: actual cost limit exceeded': no further validation rules \
         will be run due to call cost exceeds limit for rule: self.l.all(x, self.l.all(y, x + y >= 0))"
        ]
    );
    let small = json!({"spec": {"l": [1, 2, 3, 4, 5, 6, 7, 8, 9]}});
    let verdict =
        rules.ask_within(&Path::new(""), &small, None, Some(Old { value: &json!({}), node: tree.declared() }), 50);
    assert_eq!(
        verdict.errors[0].detail,
        "validation failed due to running out of cost budget, no further validation rules will be run"
    );
}

#[test]
fn field_paths_lead_somewhere() {
    let tree = schema(json!({"type": "object", "properties": {
        "a": {"type": "object", "properties": {"b.c": {"type": "string"}}},
        "m": {"type": "object", "additionalProperties": {"type": "integer"}}}}));
    for (path, want) in [
        (".a", Ok("a")),
        (".a['b.c']", Ok("a.b.c")),
        (".m['k']", Ok("m[k]")),
        (".m.k", Ok("m[k]")),
        ("a", Err("expected [ or . but got: a")),
        (".x", Err("does not refer to a valid field")),
        (".a.", Err("unexpected end of JSON path")),
        (".a[b]", Err("expected single quoted string but got b")),
        (".a['b.c'", Err("unexpected end of JSON path")),
        (".a['\\q']", Err("invalid string literal: invalid escape char \\q")),
    ] {
        let got = field_path(path, tree.declared(), Brackets::Allowed).map(|(path, _)| path.to_string());
        assert_eq!(got, want.map(str::to_owned).map_err(str::to_owned), "{path}");
    }
    let refused = field_path(".m['k']", tree.declared(), Brackets::Refused).unwrap_err();
    assert_eq!(refused, "array notation is not allowed");
}

/// Many copies of one structure have their rules compiled once.
#[test]
fn equal_places_compile_once() {
    let copy = json!({"type": "object", "properties": {"v": {"type": "string", "maxLength": 9}},
        "x-kubernetes-validations": [{"rule": "self.v.matches('^[a-z]+$') && self.v.size() < 8"}]});
    let properties: serde_json::Map<_, _> = (0..5000).map(|i| (format!("p{i}"), copy.clone())).collect();
    let tree = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}});
    assert_eq!(create(tree, json!({"p7": {"v": "ABC"}})).len(), 1);
}
