//! Pruning, nulls, metadata, defaults.
use super::schema;
use crate::object::{Unknown, default, drop_nulls, fit, has_no_void_nulls, is_defaulted, is_pruned, prune};
use serde_json::{Value, json};

fn check(tree: Value, object: Value, want: Value, findings: &[&str]) {
    let got = fit(&schema(tree), object.clone(), false, true).unwrap();
    assert_eq!(got.value, want, "{object}");
    assert_eq!(got.strict.0, findings, "{object}");
}

#[test]
fn unknown_fields_are_dropped_and_reported() {
    let tree = json!({"type": "object", "properties": {
    "spec": {"type": "object", "properties": {
        "a": {"type": "string"},
        "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"k": {"type": "string"}}}},
        "any": {"type": "object", "additionalProperties": true},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                 "properties": {"closed": {"type": "object", "properties": {"x": {"type": "string"}}}}},
    }}}});
    check(
        tree,
        json!({"apiVersion": "g/v1", "kind": "K", "zzz": 1, "spec": {
            "a": "x", "b": 1, "list": [{"n": 1, "m": 2}], "map": {"e": {"k": "v", "l": 1}},
            "any": {"s": 1, "o": {"gone": 1}}, "open": {"free": {"deep": 1}, "closed": {"x": "1", "y": 2}}}}),
        json!({"apiVersion": "g/v1", "kind": "K", "spec": {
            "a": "x", "list": [{"n": 1}], "map": {"e": {"k": "v"}},
            "any": {"s": 1, "o": {}}, "open": {"free": {"deep": 1}, "closed": {"x": "1"}}}}),
        &[
            "unknown field \"spec.any.o.gone\"",
            "unknown field \"spec.b\"",
            "unknown field \"spec.list[0].m\"",
            "unknown field \"spec.map.e.l\"",
            "unknown field \"spec.open.closed.y\"",
            "unknown field \"zzz\"",
        ],
    );
}

#[test]
fn nulls_without_meaning_are_dropped() {
    let tree = json!({"type": "object", "properties": {
        "plain": {"type": "string"}, "nullable": {"type": "string", "nullable": true},
        "defaulted": {"type": "string", "default": "d"},
        "map": {"type": "object", "additionalProperties": {"type": "string"}}}});
    let schema = schema(tree);
    let object = json!({"plain": null, "nullable": null, "defaulted": null, "map": {"a": null, "b": "c"}});
    let mut object = fit(&schema, object, false, false).unwrap().value;
    assert_eq!(object, json!({"nullable": null, "defaulted": null, "map": {"b": "c"}}));
    default(&mut object, schema.declared());
    assert_eq!(object, json!({"nullable": null, "defaulted": "d", "map": {"b": "c"}}));
}

#[test]
fn metadata_is_of_its_type_everywhere() {
    let tree = json!({"type": "object", "properties": {
        "metadata": {"type": "object"},
        "inner": {"type": "object", "x-kubernetes-embedded-resource": true,
                  "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}});
    check(
        tree.clone(),
        json!({"metadata": {"name": "n", "bogus": 1}, "inner": {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "extra": 2}, "spec": {"x": 1}, "gone": 1}}),
        json!({"metadata": {"name": "n"}, "inner": {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"x": 1}}}),
        &["unknown field \"metadata.bogus\"", "unknown field \"inner.gone\"", "unknown field \"inner.metadata.extra\""],
    );
    let refused = |object: Value| fit(&schema(tree.clone()), object, false, false).unwrap_err().to_string();
    assert_eq!(refused(json!({"kind": 1})), ".kind accessor error: 1 is of the type int64, expected string");
    assert_eq!(
        refused(json!({"metadata": {"labels": "x"}})),
        "json: cannot unmarshal string into Go struct field ObjectMeta.labels of type map[string]string"
    );
    assert_eq!(refused(json!({"inner": {"kind": 5}})), "inner.kind: Invalid value: 5: must be a string");
}

#[test]
fn defaults_fill_what_is_absent() {
    let tree = json!({"type": "object", "properties": {
        "a": {"type": "string", "default": "A"},
        "o": {"type": "object", "default": {}, "properties": {"n": {"type": "integer", "default": 3}}},
        "l": {"type": "array", "items": {"type": "string", "default": "e"}},
        "m": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {"type": "boolean", "default": true}}}}}});
    let schema = schema(tree);
    for (object, want) in [
        (json!({}), json!({"a": "A", "o": {"n": 3}})),
        (json!({"a": "", "o": {"n": 0}}), json!({"a": "", "o": {"n": 0}})),
        (json!({"a": null, "o": null}), json!({"a": "A", "o": {"n": 3}})),
        (
            json!({"l": [null, "x"], "m": {"k": {}}}),
            json!({"a": "A", "o": {"n": 3}, "l": ["e", "x"], "m": {"k": {"x": true}}}),
        ),
        (json!({"o": "wrong", "l": {}}), json!({"a": "A", "o": "wrong", "l": {}})),
    ] {
        let mut got = object.clone();
        default(&mut got, schema.declared());
        assert_eq!(got, want, "{object}");
        let again = got.clone();
        default(&mut got, schema.declared());
        assert_eq!(got, again, "defaulting twice is defaulting once");
    }
}

/// An object is complete where pruning, dropping nulls and defaulting each leave it alone.
#[test]
fn what_is_complete_is_left_alone() {
    let text = json!({"type": "string"});
    let tree = json!({"type": "object", "properties": {
    "metadata": {"type": "object", "properties": {"name": text}},
    "status": {"type": "object", "default": {"phase": "New"}, "properties": {"phase": text}},
    "spec": {"type": "object", "properties": {
        "a": text, "d": {"type": "string", "default": "x"}, "n": {"type": "string", "nullable": true},
        "dn": {"type": "string", "nullable": true, "default": "y"},
        "list": {"type": "array", "items": {"type": "object", "properties": {"k": text, "p": {"type": "string", "default": "TCP"}}}},
        "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"v": {"type": "integer", "default": 1}}}},
        "texts": {"type": "object", "additionalProperties": text},
        "any": {"type": "object", "additionalProperties": true},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"closed": {"type": "object", "properties": {"x": text}}}},
        "inner": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object", "properties": {"x": text}}}},
    }}}});
    let schema = schema(tree);
    let whole =
        json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "labels": null}, "status": {"phase": "P"}});
    let specs = [
        json!({"d": "1", "dn": "2"}),
        json!({"d": "1", "dn": null}),
        json!({"d": null, "dn": "2"}),
        json!({"dn": "2"}),
        json!({"d": "1", "dn": "2", "a": null}),
        json!({"d": "1", "dn": "2", "n": null}),
        json!({"d": "1", "dn": "2", "zz": 1}),
        json!({"d": "1", "dn": "2", "list": [{"k": "a", "p": "UDP"}]}),
        json!({"d": "1", "dn": "2", "list": [{"k": "a"}]}),
        json!({"d": "1", "dn": "2", "list": [{"p": "UDP", "q": 1}]}),
        json!({"d": "1", "dn": "2", "list": [null]}),
        json!({"d": "1", "dn": "2", "map": {"a": {"v": 1}, "b": {}}}),
        json!({"d": "1", "dn": "2", "map": {"a": {"v": 1}}, "texts": {"a": "b"}}),
        json!({"d": "1", "dn": "2", "texts": {"a": null}}),
        json!({"d": "1", "dn": "2", "any": {"a": {}, "b": [1]}}),
        json!({"d": "1", "dn": "2", "any": {"a": {"b": 1}}}),
        json!({"d": "1", "dn": "2", "open": {"free": {"deep": null}, "closed": {"x": "1"}}}),
        json!({"d": "1", "dn": "2", "open": {"closed": {"y": "1"}}}),
        json!({"d": "1", "dn": "2", "inner": {"apiVersion": "v1", "kind": "P", "metadata": {"z": 1}, "spec": {"x": "1"}}}),
        json!({"d": "1", "dn": "2", "inner": {"status": {}}}),
    ];
    let mut complete = 0;
    for spec in specs {
        for status in [true, false] {
            let mut object = whole.clone();
            object["spec"] = spec.clone();
            if !status {
                object.as_object_mut().unwrap().remove("status");
            }
            let (resource, declared) = (schema.resource(), schema.declared());
            let mut pruned = object.clone();
            prune(&mut pruned, resource, &mut Unknown::new(false));
            assert_eq!(is_pruned(&object, resource), pruned == object, "{object}");
            let mut filled = object.clone();
            default(&mut filled, declared);
            assert_eq!(is_defaulted(&object, declared), filled == object, "{object}");
            let mut without = object.clone();
            let metadata = without["metadata"].take();
            drop_nulls(&mut without, declared);
            without["metadata"] = metadata;
            assert_eq!(has_no_void_nulls(&object, declared), without == object, "{object}");
            complete += usize::from(pruned == object && filled == object && without == object);
        }
    }
    assert_eq!(complete, 9);
}
