//! The representations of a document: its API version and kind, the decoded tree, and the bytes in which a tree is stored.

use kelson_schema::{Schema, TypeId};
use serde_json::Value;

use crate::error::StrictErrors;

/// A decoded object and the findings of strict decoding.
#[derive(Debug, Clone, Default)]
pub struct Decoded {
    /// The canonical form.
    pub value: Value,
    /// Unknown and duplicate fields in the order of their appearance. Empty if strict decoding was not requested.
    pub strict: StrictErrors,
}

/// The API version and kind that a document states.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypeMeta {
    /// The group and version, such as `v1` or `apps/v1`; empty if the document has none.
    pub api_version: String,
    /// The kind, such as `Pod`; empty if the document has none.
    pub kind: String,
}

impl TypeMeta {
    /// The built-in type with this API version and kind, if there is one.
    pub fn type_id(&self) -> Option<TypeId> {
        Schema::builtin().by_api_version(&self.api_version, &self.kind)
    }
}

/// The name by which Go's decoder reports a value of the wrong type. Its name for null depends on where the value is,
/// so the caller passes it.
pub fn go_kind(value: &Value, null: &'static str) -> &'static str {
    match value {
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        Value::Null => null,
    }
}

/// Compact JSON with sorted keys. Equal trees have equal bytes.
pub fn canonical_json(value: &Value) -> Vec<u8> {
    // Serializing cannot fail, because the keys of all maps are strings.
    serde_json::to_vec(value).unwrap_or_default()
}
