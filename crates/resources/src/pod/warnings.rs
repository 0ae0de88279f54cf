//! Warnings about pods.
use serde_json::Value;

/// Warnings on creating a pod.
pub fn pod(obj: &Value) -> Vec<String> {
    let _ = obj;
    Vec::new()
}

/// Warnings about a pod template, when it is new or changed.
pub fn template(new: &Value, old: Option<&Value>) -> Vec<String> {
    let _ = (new, old);
    Vec::new()
}
