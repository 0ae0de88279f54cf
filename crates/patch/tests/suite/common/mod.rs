//! Helpers of the field management tests: times, a kind, and a reader of `managedFields`.
use kelson_patch::{FieldManager, FieldSet};
use serde_json::{Value, json};

pub const T1: &str = "2026-01-01T00:00:01Z";
pub const T2: &str = "2026-01-01T00:00:02Z";
pub const T3: &str = "2026-01-01T00:00:03Z";

pub fn deployments() -> FieldManager {
    FieldManager::builtin("apps", "v1", "Deployment", "", FieldSet::of(&[&["status"]]))
}

pub fn deployment(spec: Value) -> Value {
    json!({"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default"},"spec":spec})
}

pub fn entry<'a>(object: &'a Value, manager: &str, operation: &str) -> &'a Value {
    object["metadata"]["managedFields"]
        .as_array()
        .and_then(|m| m.iter().find(|e| e["manager"] == manager && e["operation"] == operation))
        .unwrap_or(&Value::Null)
}

pub fn managers(object: &Value) -> Vec<&str> {
    object["metadata"]["managedFields"]
        .as_array()
        .map_or(Vec::new(), |m| m.iter().filter_map(|e| e["manager"].as_str()).collect())
}
