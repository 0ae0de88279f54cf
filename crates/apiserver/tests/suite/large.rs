//! Definitions of the size that operators publish: hundreds of kilobytes of schema, deeply nested, with descriptions of all fields.

use crate::common::Api;
use serde_json::{Map, Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const ALL: &str = "/apis/monitoring.example.com/v1/namespaces/default/monitors";
/// About the size of the largest published definitions, in bytes.
const SCHEMA_BYTES: usize = 700 * 1024;
/// Depth of nested objects in a part.
const DEPTH: usize = 12;

fn described(mut schema: Value, what: &str) -> Value {
    schema["description"] = format!("{what} says how this part of the configuration behaves. ").repeat(3).into();
    schema
}

/// A part similar to a pod template: lists by key, maps, quantities, and nested parts.
fn part(depth: usize) -> Value {
    let mut fields = Map::new();
    for i in 0..6 {
        fields.insert(format!("text{i}"), described(json!({"type": "string", "maxLength": 253}), "A text"));
    }
    fields.insert("count".into(), described(json!({"type": "integer", "format": "int32", "default": 1}), "A count"));
    fields.insert(
        "amount".into(),
        described(
            json!({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true,
                "pattern": "^[0-9]+(m|Ki|Mi|Gi)?$"}),
            "An amount",
        ),
    );
    fields.insert(
        "labels".into(),
        described(json!({"type": "object", "additionalProperties": {"type": "string"}}), "Labels"),
    );
    let port = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string"}, "port": {"type": "integer", "minimum": 1, "maximum": 65535},
        "protocol": {"type": "string", "enum": ["TCP", "UDP"], "default": "TCP"}}});
    fields.insert(
        "ports".into(),
        described(
            json!({"type": "array", "items": port, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
            "Ports",
        ),
    );
    if depth > 0 {
        fields.insert("below".into(), part(depth - 1));
    }
    described(json!({"type": "object", "properties": fields}), "A part")
}

fn definition() -> Value {
    let mut parts = Map::new();
    let mut bytes = 0;
    while bytes < SCHEMA_BYTES {
        let part = part(DEPTH);
        bytes += part.to_string().len();
        parts.insert(format!("part{}", parts.len()), part);
    }
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": parts}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "monitors.monitoring.example.com"}, "spec": {"group": "monitoring.example.com",
        "scope": "Namespaced", "names": {"plural": "monitors", "kind": "Monitor"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

/// A value at the bottom of the first part.
fn below(value: Value) -> Value {
    (0..DEPTH).fold(value, |value, _| json!({"below": value}))
}

#[tokio::test]
async fn a_definition_of_an_operators_size_is_served() {
    let api = Api::start().await;
    api.create(DEFINITIONS, definition()).await;
    let monitor = |name: &str, value: Value| {
        json!({"apiVersion": "monitoring.example.com/v1", "kind": "Monitor", "metadata": {"name": name},
            "spec": {"part0": below(value)}})
    };
    let made = api.create(ALL, monitor("a", json!({"text0": "x", "ports": [{"name": "web", "port": 80}]}))).await;
    let at = format!("/spec/part0{}", "/below".repeat(DEPTH));
    let bottom = made.pointer(&at).expect("the bottom");
    assert_eq!(
        (&bottom["count"], &bottom["ports"][0]["protocol"]),
        (&json!(1), &json!("TCP")),
        "defaults apply at any depth"
    );
    let path = format!("spec.part0{}", ".below".repeat(DEPTH));
    let (code, status) = api.call("POST", ALL, monitor("b", json!({"ports": [{"name": "web", "port": 0}]}))).await;
    let message = status["message"].as_str().unwrap_or("");
    assert_eq!(code, 422, "{message}");
    assert!(message.contains(&format!("{path}.ports[0].port: Invalid value: 0: ")), "{message}");
    let strict = format!("{ALL}?fieldValidation=Strict");
    let (code, status) = api.call("POST", &strict, monitor("c", json!({"typo": 1}))).await;
    let message = status["message"].as_str().unwrap_or("");
    assert_eq!(code, 400, "{message}");
    assert!(message.contains(&format!("unknown field \"{path}.typo\"")), "{message}");
    let (code, patched) = api.call("PATCH", &format!("{ALL}/a"), json!({"spec": {"part1": {"amount": "1Gi"}}})).await;
    assert_eq!((code, &patched["spec"]["part1"]["amount"]), (200, &json!("1Gi")), "{patched}");
    let document = api.get("/openapi/v3/apis/monitoring.example.com/v1").await;
    let schema = &document["components"]["schemas"]["com.example.monitoring.v1.Monitor"];
    let explained = "/properties/spec/properties/part0/properties/below/properties/ports/description";
    assert!(schema.pointer(explained).is_some_and(Value::is_string), "descriptions for kubectl explain are published");
    assert_eq!(api.get(ALL).await["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(api.get(DEFINITIONS).await["items"].as_array().map(Vec::len), Some(1));
}
