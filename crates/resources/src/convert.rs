//! Between served and stored versions. Most kinds are field-identical across versions; those that are not convert here.
use kelson_meta::{Gvk, Status};
use serde_json::Value;

use crate::registry;
use crate::tree::set;

/// Makes `obj`, of version `from`, an object of version `to`, `apiVersion` and `kind` included.
///
/// # Errors
/// 400 when the two are not versions of one kind.
pub fn convert(from: &Gvk, to: &Gvk, mut obj: Value) -> Result<Value, Status> {
    if from != to {
        if from.kind != to.kind {
            return Err(Status::bad_request(format!("{from} cannot be converted to {to}")));
        }
        set(&mut obj, "apiVersion", to.api_version());
        set(&mut obj, "kind", to.kind.clone());
    }
    Ok(obj)
}

/// The stored form's name of a built-in resource; `None` for others.
pub fn storage_gvk(group: &str, resource: &str) -> Option<Gvk> {
    registry::strategy(group, resource).map(|s| s.options().storage_gvk())
}
