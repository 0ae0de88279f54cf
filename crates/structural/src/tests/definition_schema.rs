//! What schemas of definitions may say.
use super::definition::{definition, texts};
use crate::definition::validate_create;
use serde_json::{Value, json};

/// Faults of a schema, below `spec.validation.openAPIV3Schema`.
fn schema(tree: Value, want: &[&str]) {
    let found = texts(&validate_create(&definition(tree.clone())));
    let short: Vec<String> = found.iter().map(|f| f.replace("spec.validation.openAPIV3Schema", "$")).collect();
    assert_eq!(short, want, "{tree}");
}

/// Faults of the schema of `spec.x`.
fn x(tree: Value, want: &[&str]) {
    let whole = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": tree}}}});
    let found = texts(&validate_create(&definition(whole)));
    let at = "spec.validation.openAPIV3Schema.properties[spec].properties[x]";
    let short: Vec<String> = found.iter().map(|f| f.replace(at, "x")).collect();
    assert_eq!(short, want, "{tree}");
}

#[test]
fn structure() {
    schema(
        json!({"properties": {"a": {"type": "string"}}}),
        &["$.type: Required value: must not be empty at the root"],
    );
    schema(
        json!({"type": "object", "additionalProperties": true}),
        &["$.additionalProperties: Forbidden: must not be used at the root"],
    );
    schema(
        json!({"type": "object", "nullable": true}),
        &["$.nullable: Forbidden: nullable cannot be true at the root"],
    );
    x(json!({}), &["x.type: Required value: must not be empty for specified object fields"]);
    x(json!({"type": "array"}), &["x.items: Required value: must be specified"]);
    x(
        json!({"type": "array", "items": {}}),
        &["x.items.type: Required value: must not be empty for specified array items"],
    );
    x(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}), &[]);
    x(json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}), &[]);
    x(
        json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "string"}, {"type": "integer"}]}),
        &[
            "x.anyOf[0].type: Forbidden: must be empty to be structural",
            "x.anyOf[1].type: Forbidden: must be empty to be structural",
        ],
    );
    schema(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "oneOf": [{"required": ["a"]}, {"properties": {"b": {"pattern": "x"}}}]}),
        &["$.properties[b]: Required value: because it is defined in $.oneOf[1].properties[b]"],
    );
    x(
        json!({"type": "string", "pattern": "["}),
        &[
            "x.pattern: Invalid value: \"[\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ]: `[`",
        ],
    );
    x(
        json!({"type": "object", "x-kubernetes-embedded-resource": true}),
        &[
            "x.properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ],
    );
    schema(
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}}}}),
        &[],
    );
    schema(
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
        &[
            "$.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ],
    );
}

#[test]
fn forbidden_constructs() {
    x(
        json!({"type": "string", "uniqueItems": true}),
        &["x.uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"],
    );
    x(
        json!({"type": "wrong"}),
        &[
            "x.type: Unsupported value: \"wrong\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ],
    );
    x(json!({"type": "object", "$ref": "#/x"}), &["x.$ref: Forbidden: $ref is not supported"]);
    x(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
        &["x.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"],
    );
    x(
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
        &["x.x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined"],
    );
}

#[test]
fn lists_and_maps() {
    let map = |keys: Value, element: Value| {
        json!({"type": "array", "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": keys, "items": element})
    };
    let element =
        json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "string"}}});
    x(map(json!(["k"]), element.clone()), &[]);
    x(
        map(json!(["k", "k", "z", "v"]), element),
        &[
            "x.x-kubernetes-list-map-keys: Invalid value: [\"k\",\"k\",\"z\",\"v\"]: must not contain duplicate entries",
            "x.x-kubernetes-list-map-keys: Invalid value: [\"k\",\"k\",\"z\",\"v\"]: entries must all be names of item properties",
            "x.items.properties[v].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ],
    );
    x(
        map(json!([]), json!({"type": "string", "nullable": true})),
        &[
            "x.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
            "x.items.type: Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is map",
            "x.items.nullable: Forbidden: cannot be nullable when x-kubernetes-list-type is map",
        ],
    );
    x(
        json!({"type": "string", "x-kubernetes-list-type": "bag"}),
        &[
            "x.type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified",
            "x.x-kubernetes-list-type: Unsupported value: \"bag\": supported values: \"atomic\", \"set\", \"map\"",
        ],
    );
    x(
        json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object", "properties": {"a": {"type": "string"}}}}),
        &[
            "x.items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
        ],
    );
    x(
        json!({"type": "object", "x-kubernetes-map-type": "odd"}),
        &["x.x-kubernetes-map-type: Unsupported value: \"odd\": supported values: \"atomic\", \"granular\""],
    );
}

#[test]
fn defaults_are_valid() {
    x(json!({"type": "string", "default": "a"}), &[]);
    x(
        json!({"type": "string", "default": 5}),
        &["x.default: Invalid value: \"integer\":  in body must be of type string: \"integer\""],
    );
    x(
        json!({"type": "object", "default": {"a": "x", "b": 1}, "properties": {"a": {"type": "string"}}}),
        &["x.default: Invalid value: {\"a\":\"x\",\"b\":1}: must not have unknown fields"],
    );
    let embedded = |metadata: Value| {
        json!({"type": "object", "x-kubernetes-embedded-resource": true,
        "properties": {"metadata": metadata, "spec": {"type": "object"}}})
    };
    x(embedded(json!({"type": "object", "default": {"name": "ok"}, "properties": {"name": {"type": "string"}}})), &[]);
    x(
        embedded(json!({"type": "object", "properties": {"name": {"type": "string", "default": ".."}}})),
        &[
            "x.properties[metadata].properties[name].default: Invalid value: \"..\": must result in valid metadata: metadata.name: Invalid value: \"..\": may not be '..'",
        ],
    );
    schema(
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "default": "n"}}}}}),
        &["$.properties[metadata].properties[name].default: Forbidden: must not be set in top-level metadata"],
    );
    x(
        json!({"type": "integer", "default": 3, "x-kubernetes-validations": [{"rule": "self > 5", "message": "small"}]}),
        &["x.default: Invalid value: 3: small"],
    );
}

#[test]
fn rules_compile_and_are_affordable() {
    let rules = |rules: Value| {
        json!({"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}},
        "x-kubernetes-validations": rules})
    };
    x(rules(json!([{"rule": "self.n > 0"}])), &[]);
    x(rules(json!([{"rule": " "}])), &["x.x-kubernetes-validations[0].rule: Required value: rule is not specified"]);
    x(
        rules(json!([{"rule": "self.n > 0", "message": "a\nb", "reason": "Why", "fieldPath": ".z"}])),
        &[
            "x.x-kubernetes-validations[0].message: Invalid value: \"a\\nb\": must not contain line breaks",
            "x.x-kubernetes-validations[0].reason: Unsupported value: \"Why\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
            "x.x-kubernetes-validations[0].fieldPath: Invalid value: \".z\": must be a valid path",
        ],
    );
    x(
        rules(json!([{"rule": "self.n"}])),
        &[
            "x.x-kubernetes-validations[0].rule: Invalid value: {\"Rule\":\"self.n\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}: cel expression must evaluate to a bool",
        ],
    );
    let undeclared = with_rule("self.z > 0");
    assert!(undeclared[0].contains("compilation failed: ERROR: <input>:1:5: undefined field 'z'"), "{undeclared:?}");
    x(
        rules(json!([{"rule": "self.n > 0", "optionalOldSelf": true}])),
        &[
            "x.x-kubernetes-validations[0].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule",
        ],
    );
    x(
        rules(json!([{"rule": "self.n > 0", "messageExpression": "self.n"}])),
        &[
            "x.x-kubernetes-validations[0].messageExpression: Invalid value: {\"Rule\":\"self.n \\u003e 0\",\"Message\":\"\",\"MessageExpression\":\"self.n\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}: messageExpression must evaluate to a string",
        ],
    );
    x(
        json!({"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}),
        &[
            "x.items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used on the uncorrelatable portion of the schema within x",
        ],
    );
}

fn with_rule(rule: &str) -> Vec<String> {
    let tree = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "n": {"type": "integer"}, "l": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}},
        "x-kubernetes-validations": [{"rule": rule}]}}});
    texts(&validate_create(&definition(tree)))
}

#[test]
fn dear_rules_are_refused() {
    let found = with_rule("self.l.all(a, a.all(b, self.l.all(c, c.all(d, b == d))))");
    assert!(
        found[0].starts_with(
            "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x"
        ),
        "{found:?}"
    );
    let total = found.iter().find(|f| {
        f.starts_with("spec.validation.openAPIV3Schema: Forbidden: x-kubernetes-validations estimated rule cost total")
    });
    assert!(total.is_some(), "{found:?}");
    assert!(found.iter().any(|f| {
        f.ends_with("contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema")
    }));
    assert_eq!(with_rule("self.n > 0"), [""; 0]);
}

#[test]
fn hostile_definitions_stay_bounded() {
    let mut deep = json!({"type": "string"});
    for _ in 0..400 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    assert!(!validate_create(&definition(deep)).is_empty());
    let wide: serde_json::Map<_, _> =
        (0..20_000).map(|i| (format!("f{i}"), json!({"type": "string", "pattern": "^a+$"}))).collect();
    assert_eq!(texts(&validate_create(&definition(json!({"type": "object", "properties": wide})))), [""; 0]);
    let words: Vec<Value> = (0..50_000).map(|i| format!("w{i}").into()).collect();
    let tree = json!({"type": "object", "properties": {"e": {"type": "string", "enum": words}}});
    assert_eq!(texts(&validate_create(&definition(tree))), [""; 0]);
}
