//! What may change in a pod once it exists.
use serde_json::Value;

use crate::path::Errors;
use crate::tree::{items, restore};

/// An update of the main resource.
pub fn check(new: &Value, old: &Value, e: &mut Errors) {
    let _ = (new, old, e);
}
/// An update through `ephemeralcontainers`.
pub fn check_ephemeral(new: &Value, old: &Value, e: &mut Errors) {
    let _ = (new, old, e);
}
/// Takes only resources and resize policies from the request.
pub fn prepare_resize(new: &mut Value, old: &Value) {
    let _ = items(new);
    restore(new, old, "status");
}
/// An update through `resize`.
pub fn check_resize(new: &Value, old: &Value, e: &mut Errors) {
    let _ = (new, old, e);
}
