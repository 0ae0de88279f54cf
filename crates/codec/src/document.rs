//! A document before and after: what it says it is, the tree it decodes to, and the bytes in which a tree is stored.

use kelson_schema::{Schema, TypeId};
use serde_json::Value;

use crate::error::StrictErrors;

/// A decoded object and what strict decoding found.
#[derive(Debug, Clone, Default)]
pub struct Decoded {
    /// The canonical form.
    pub value: Value,
    /// Unknown and duplicate fields, in order of appearance; empty when none were asked for.
    pub strict: StrictErrors,
}

/// What a document says it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypeMeta {
    /// Group and version: `v1`, `apps/v1`; empty where the document says none.
    pub api_version: String,
    /// The type's name within the version: `Pod`; empty where the document says none.
    pub kind: String,
}

impl TypeMeta {
    /// The built-in type, if there is one.
    pub fn type_id(&self) -> Option<TypeId> {
        Schema::builtin().by_api_version(&self.api_version, &self.kind)
    }
}

/// What Go's decoder calls a value that does not fit. How it calls null differs from place to place, so the caller says it.
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

/// Compact JSON with sorted keys: one text for every tree.
pub fn canonical_json(value: &Value) -> Vec<u8> {
    // Values serialise without fail: their maps have string keys only.
    serde_json::to_vec(value).unwrap_or_default()
}
